'use strict';

// A published ReliableReceiver that prints every group it takes, one JSON list of ids per line, until it is stopped.
// Usage: node receiver.js <host:port> <stream> <component> <user:secret>

require('ws');
const { AdvancedCCM } = require('futoin-invoker');
const ReliableReceiver = require('futoin-eventstream/ReliableReceiver');

const [address, stream, component, credentials] = process.argv.slice(2);
const receiver = new ReliableReceiver(new AdvancedCCM());
receiver.on('newEvents', (events) => process.stdout.write(`${JSON.stringify(events.map((event) => Number(event.id)))}\n`));
receiver.start(`secure+ws://${address}/futoin/${stream}/`, credentials, {
    component, callTimeoutMS: 300, retryCount: 0, limitZone: 'unlimited',
});
