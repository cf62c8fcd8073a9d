// A Restate service that calls itself: the peer of the self-calls in bench_ambrosia.py.
// Environment: MODULES (directory with node_modules), PORT, CALLS. Prints "calls/s N" when the last call has run.

if (!Promise.withResolvers) {
  // the SDK needs Node 22; this is all that Node 20 lacks
  Promise.withResolvers = () => {
    let resolve, reject;
    const promise = new Promise((yes, no) => { resolve = yes; reject = no; });
    return { promise, resolve, reject };
  };
}

const { createRequire } = require("node:module");
const restate = createRequire(process.env.MODULES + "/")("@restatedev/restate-sdk");
const calls = parseInt(process.env.CALLS, 10);
let seen = 0;
let begun = 0;

const self = restate.service({
  name: "Self",
  handlers: {
    burst: async (context, count) => {
      begun = performance.now();
      for (let i = 0; i < count; i++) context.serviceSendClient({ name: "Self" }).add("x".repeat(100));
    },
    add: async () => {
      seen += 1;
      if (seen === calls) console.log(`calls/s ${(calls / (performance.now() - begun)) * 1000}`);
    },
  },
});

restate.endpoint().bind(self).listen(parseInt(process.env.PORT, 10));
