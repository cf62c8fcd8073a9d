// A Restate object that counts: the peer of the calls from outside in bench_immortals.py.
// Environment: MODULES (directory with node_modules), PORT.

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

const counter = restate.object({
  name: "counter",
  handlers: {
    add: async (context, { amount }) => {
      const total = ((await context.get("total")) ?? 0) + amount;
      context.set("total", total);
      return total;
    },
  },
});

restate.endpoint().bind(counter).listen(parseInt(process.env.PORT, 10));
