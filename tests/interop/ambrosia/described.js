// An immortal written from the published description of AMBROSIA's client protocol, and from nothing of Headrace:
//
//     node described.js NAME OTHER READY_FILE RESULT_FILE CALLS WINDOW
//
// `ping` sends numbered calls to `pong`, which sends each number back. Both check that every number comes once and in
// order. When its coordinator goes, a program forgets all that it knows, connects again, and recovers.
"use strict";
const fs = require("fs");
const net = require("net");

const [NAME, OTHER, READY, RESULT, calls, window_] = process.argv.slice(2);
const CALLS = Number(calls);
const WINDOW = Number(window_);
const HEADER_BYTES = 24;
const TYPE = { rpc: 0, attach: 1, takeCheckpoint: 2, batch: 5, checkpoint: 8, initial: 9, becomePrimary: 11, counted: 13 };
const FORK = 1;
const METHOD = 1;

function zigZag(number) {
  const bytes = [];
  let rest = number >= 0 ? number * 2 : -number * 2 - 1;
  while (rest > 127) {
    bytes.push((rest % 128) + 128);
    rest = Math.floor(rest / 128);
  }
  bytes.push(rest);
  return Buffer.from(bytes);
}

/** The number that begins at a place, and what comes after it. */
function unZigZag(data, at) {
  let value = 0;
  let scale = 1;
  for (; ; at++, scale *= 128) {
    value += (data[at] & 127) * scale;
    if (data[at] < 128) {
      return [value % 2 ? -(value + 1) / 2 : value / 2, at + 1];
    }
  }
}

function message(type, ...pieces) {
  const body = Buffer.concat([Buffer.from([type]), ...pieces]);
  return Buffer.concat([zigZag(body.length), body]);
}

/** One life: from a connection to its end. */
class Life {
  constructor(toHub) {
    this.state = { last: 0, wrong: 0 };
    this.isKnown = false;
    this.toHub = toHub;
    this.heard = Buffer.alloc(0);
    this.blobBytes = null;
  }

  say(...messages) {
    this.toHub.write(Buffer.concat(messages));
  }

  hear(data) {
    this.heard = Buffer.concat([this.heard, data]);
    for (;;) {
      if (this.blobBytes !== null) {
        if (this.heard.length < this.blobBytes) return;
        this.state = JSON.parse(this.heard.subarray(0, this.blobBytes).toString());
        this.heard = this.heard.subarray(this.blobBytes);
        this.blobBytes = null;
      }
      if (this.heard.length < HEADER_BYTES) return;
      const size = this.heard.readInt32LE(4);
      if (this.heard.length < size) return;
      const record = this.heard.subarray(HEADER_BYTES, size);
      this.heard = this.heard.subarray(size);
      this.takeAll(record);
    }
  }

  takeAll(data) {
    for (let at = 0; at < data.length; ) {
      const [size, begin] = unZigZag(data, at);
      at = begin + size;
      this.take(data[begin], data.subarray(begin + 1, at));
    }
  }

  take(type, data) {
    switch (type) {
      case TYPE.becomePrimary:
        if (!this.isKnown) this.say(message(TYPE.initial, Buffer.from("hello")));
        this.store();
        break;
      case TYPE.takeCheckpoint:
        this.store();
        break;
      case TYPE.checkpoint:
        this.isKnown = true;
        this.blobBytes = unZigZag(data, 0)[0];
        this.say(message(TYPE.attach, Buffer.from(OTHER)));
        break;
      case TYPE.initial:
        this.say(message(TYPE.attach, Buffer.from(OTHER)));
        for (let number = 1; NAME === "ping" && number <= Math.min(WINDOW, CALLS); number++) this.send(number);
        break;
      case TYPE.batch:
        this.takeAll(data.subarray(unZigZag(data, 0)[1]));
        break;
      case TYPE.counted: {
        const behindCount = unZigZag(data, 0)[1];
        this.takeAll(data.subarray(unZigZag(data, behindCount)[1]));
        break;
      }
      case TYPE.rpc:
        this.called(data);
        break;
      default:
        throw new Error(`a message of type ${type}`);
    }
  }

  called(data) {
    const [method, at] = unZigZag(data, 1);
    if (data[0] !== 0 || method !== METHOD || data[at] !== FORK) throw new Error("a call that nobody made");
    const number = data.readInt32LE(at + 1);
    if (number !== this.state.last + 1) this.state.wrong++;
    this.state.last = number;
    if (NAME === "pong") this.send(number);
    else if (number + WINDOW <= CALLS) this.send(number + WINDOW);
    if (number === CALLS) this.end();
  }

  send(number) {
    const argument = Buffer.alloc(4);
    argument.writeInt32LE(number);
    const name = Buffer.from(OTHER);
    this.say(message(TYPE.rpc, zigZag(name.length), name, Buffer.from([0]), zigZag(METHOD), Buffer.from([FORK]), argument));
  }

  store() {
    const blob = Buffer.from(JSON.stringify(this.state));
    this.say(message(TYPE.checkpoint, zigZag(blob.length)), blob);
  }

  end() {
    fs.writeFileSync(`${RESULT}.new`, JSON.stringify({ ...this.state, lives }));
    fs.renameSync(`${RESULT}.new`, RESULT);
  }
}

let lives = 0;

function connect(address) {
  const colon = address.lastIndexOf(":");
  return net.connect(Number(address.slice(colon + 1)), address.slice(0, colon));
}

function live() {
  const ready = JSON.parse(fs.readFileSync(READY));
  const toHub = connect(ready[`ambrosia.${NAME}.receive`]);
  const fromHub = connect(ready[`ambrosia.${NAME}.send`]);
  const life = new Life(toHub);
  let isOver = false;
  const over = () => {
    if (isOver) return;
    isOver = true;
    toHub.destroy();
    fromHub.destroy();
    setTimeout(live, 100);
  };
  fromHub.once("data", () => lives++);
  fromHub.on("data", (data) => isOver || life.hear(data));
  for (const socket of [toHub, fromHub]) {
    socket.setNoDelay(true);
    socket.on("error", over);
    socket.on("close", over);
  }
}

live();
