/* Search without a web server. A page that was opened as a file may not start a worker; what would run in one runs in a
   hidden frame instead. The theme looks for IFrameWorker to find its own scripts there. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = data => setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(inside, each)), Promise.resolve());
      this.started = load(inside, url);
      this.postMessage = data =>
        this.started.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
      this.terminate = () => frame.remove();
    }
  };
  const load = (inside, url) =>
    new Promise((done, failed) => {
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href);
      script.onload = done;
      script.onerror = failed;
      inside.document.body.append(script);
    });
  window.Worker = window.IFrameWorker;
}
