// Reads a stream: one partition, or all of them merged by time. It knows where it is in each.

import { call } from "./api.js";
import { opened } from "./record.js";

export class Reading {
  constructor(stream, partitions) {
    this.stream = stream;
    this.chosen = partitions; // numbers
    this.next = new Map();
    this.first = new Map();
    this.ends = new Map();
  }

  get atEnd() {
    return this.chosen.every((number) => (this.next.get(number) ?? 0) >= (this.ends.get(number) ?? 0));
  }

  get atStart() {
    return this.chosen.every((number) => (this.first.get(number) ?? 0) <= (this.starts?.get(number) ?? 0));
  }

  async bounds() {
    const found = await call("stream.bounds", { stream: this.stream });
    this.starts = new Map(found.map((one) => [one.partition, one.first]));
    this.ends = new Map(found.map((one) => [one.partition, one.next]));
    return found.filter((one) => this.chosen.includes(one.partition));
  }

  async part(partition, start, limit) {
    const page = await call("stream.read", { stream: this.stream, partition, start, limit });
    this.ends.set(partition, page.end);
    return { ...page, records: page.records.map((one) => ({ ...opened(one), partition })) };
  }

  // From these places on: at most `limit` records, the oldest of all partitions first.
  async from(starts, limit) {
    const pages = await Promise.all(this.chosen.map((number) => this.part(number, starts.get(number), limit)));
    const merged = inTime(pages.flatMap((page) => page.records)).slice(0, limit);
    this.chosen.forEach((number, at) => {
      const mine = merged.filter((one) => one.partition === number);
      const cut = mine.length < pages[at].records.length;
      this.first.set(number, mine[0]?.index ?? pages[at].records[0]?.index ?? pages[at].next);
      this.next.set(number, cut ? (mine.at(-1)?.index ?? pages[at].records[0].index - 1) + 1 : pages[at].next);
    });
    return merged;
  }

  async on(limit) {
    return this.from(this.next, limit);
  }

  async last(limit) {
    const bounds = await this.bounds();
    return this.back(new Map(bounds.map((one) => [one.partition, one.next])), limit);
  }

  async earlier(limit) {
    await this.bounds();
    return this.back(this.first, limit);
  }

  // The last records before these places.
  async back(ends, limit) {
    const parts = await Promise.all(
      this.chosen.map(async (number) => {
        const end = ends.get(number);
        const start = Math.max(this.starts.get(number) ?? 0, end - limit);
        if (start >= end) return [];
        return (await this.part(number, start, end - start)).records.filter((one) => one.index < end);
      }),
    );
    const merged = inTime(parts.flat()).slice(-limit);
    for (const number of this.chosen) {
      const mine = merged.filter((one) => one.partition === number);
      this.first.set(number, mine[0]?.index ?? ends.get(number));
      this.next.set(number, mine.length ? mine.at(-1).index + 1 : ends.get(number));
    }
    return merged;
  }

  // What has come since; nothing when nothing has.
  async fresh(limit) {
    const bounds = await this.bounds();
    const moved = bounds.filter((one) => one.next > this.next.get(one.partition));
    const pages = await Promise.all(
      moved.map((one) => this.part(one.partition, Math.max(this.next.get(one.partition), one.next - limit), limit)),
    );
    moved.forEach((one, at) => this.next.set(one.partition, pages[at].next));
    return inTime(pages.flatMap((page) => page.records));
  }

  async atTime(timeUs) {
    const found = await Promise.all(
      this.chosen.map((partition) => call("stream.index-at-time", { stream: this.stream, partition, time_us: timeUs })),
    );
    return new Map(this.chosen.map((number, at) => [number, found[at].index]));
  }

  each(index) {
    return new Map(this.chosen.map((number) => [number, index]));
  }
}

const inTime = (records) =>
  records.sort((one, other) => Number(one.time_us) - Number(other.time_us) || one.partition - other.partition || one.index - other.index);
