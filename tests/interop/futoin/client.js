'use strict';

// Drives the published FutoIn clients, unmodified, and prints what they saw as one JSON object per line.
// Usage: node client.js <host:port> <stream> <JSON|MPCK> <user:secret> [<MAC key in base64>]

require('ws');
require('msgpack-lite');
const $as = require('futoin-asyncsteps');
const { AdvancedCCM, MasterAuth, SpecTools } = require('futoin-invoker');
const hkdf = require('futoin-hkdf');
const GenFace = require('futoin-eventstream/GenFace');
const PollFace = require('futoin-eventstream/PollFace');
const LiveReceiver = require('futoin-eventstream/LiveReceiver');
const ReliableReceiver = require('futoin-eventstream/ReliableReceiver');

const [address, stream, coder, credentials, macKey] = process.argv.slice(2);
const endpoint = {
    http: `secure+http://${address}/futoin/${stream}/`,
    ws: `secure+ws://${address}/futoin/${stream}/`,
};
const EVENTS_OF_EACH_TYPE = 20;

const say = (step, seen) => process.stdout.write(`${JSON.stringify({ step, seen })}\n`);
const options = (more) => Object.assign({ coder, retryCount: 0, callTimeoutMS: 60000, limitZone: 'unlimited' }, more);
const deadline = setTimeout(() => { say('timeout', null); process.exit(1); }, 240000);

function failed(as, error) {
    say('error', { error, info: as.state.error_info, stack: String(as.state.last_exception && as.state.last_exception.stack) });
    process.exit(1);
}

function expectError(as, wanted, call) {
    as.add(
        (as) => {
            call(as);
            as.add((as) => { say(`expected ${wanted}`, 'no error'); });
        },
        (as, error) => { say(`expected ${wanted}`, error); as.success(); },
    );
}

function addAndPoll(as, ccm, transport, version, component) {
    const gen = `gen-${transport}-${version}`;
    const poll = `poll-${transport}-${version}`;
    as.add((as) => {
        GenFace.register(as, ccm, gen, endpoint[transport], credentials, options({ version }));
        PollFace.register(as, ccm, poll, endpoint[transport], credentials, options({ version }));
    });
    as.add((as) => ccm.iface(gen).ping(as, 123));
    as.add((as, echo) => say(`${gen} ping`, echo));
    as.add((as) => expectError(as, 'NotRegistered', (as) => ccm.iface(poll).pollEvents(as, component, null, null)));
    as.add((as) => expectError(as, 'LiveNotAllowed', (as) => ccm.iface(poll).registerConsumer(as, 'LIVE')));
    as.add((as) => ccm.iface(poll).registerConsumer(as, component));
    as.add((as, registered) => say(`${poll} register`, registered));
    const values = [null, 5, 'text é', [1, null, true], { a: { b: 1.5 } }];
    as.add((as) => as.loop((as) => {
        if (!values.length) as.break();
        const value = values.shift();
        ccm.iface(gen).addEvent(as, 'ADDED', value);
        as.add((as, id) => say(`${gen} add`, { id, value }));
    }));
    let last = null;
    as.add((as) => as.loop((as) => {
        ccm.iface(poll).pollEvents(as, component, last, ['ADDED']);
        as.add((as, events) => {
            say(`${poll} events`, events);
            if (!events.length) as.break();
            last = events[events.length - 1].id;
        });
    }));
    as.add((as) => ccm.iface(poll).pollEvents(as, 'LIVE', null, null));
    as.add((as, events) => say(`${poll} live`, events.length));
}

function push(as, ccm, version) {
    const seen = { reliable: [], filtered: [], live: [] };
    const reliable = new ReliableReceiver(ccm);
    const filtered = new ReliableReceiver(ccm);
    const live = new LiveReceiver(ccm);
    let ready = 0;
    const watch = (receiver, name) => {
        receiver.on('newEvents', (events) => seen[name].push(...events));
        receiver.on('ready', () => ready++);
        receiver.on('workerError', (...args) => say(`${name} workerError`, args.map(String)));
    };
    watch(reliable, 'reliable');
    watch(filtered, 'filtered');
    watch(live, 'live');
    as.add((as) => {
        reliable.start(endpoint.ws, credentials, options({ component: `PUSH${version.replace('.', '')}`, version }));
        filtered.start(endpoint.ws, credentials, options({ component: `FILT${version.replace('.', '')}`, version, want: ['ODD'] }));
        live.start(endpoint.ws, credentials, options({ version }));
        waitFor(as, () => ready === 3);
    });
    for (let i = 0; i < EVENTS_OF_EACH_TYPE * 2; ++i) {
        as.add((as) => ccm.iface('gen-ws-1.1').addEvent(as, i % 2 ? 'ODD' : 'EVEN', { i, version }));
    }
    const ofThisRun = (events) => events.filter((e) => e.data && e.data.version === version);
    as.add((as) => waitFor(as, () => ofThisRun(seen.reliable).length >= EVENTS_OF_EACH_TYPE * 2
        && ofThisRun(seen.filtered).length >= EVENTS_OF_EACH_TYPE
        && ofThisRun(seen.live).length >= EVENTS_OF_EACH_TYPE * 2));
    as.add((as) => {
        for (const name of Object.keys(seen)) say(`push-${version} ${name}`, seen[name]);
        reliable.stop();
        filtered.stop();
        live.stop();
    });
}

function waitFor(as, condition) {
    as.loop((as) => {
        if (condition()) as.break();
        as.waitExternal();
        setTimeout(() => { if (as.state) as.success(); }, 10);
    });
}

function signed(as, ccm) {
    const signature = { macKey, macAlgo: 'HS256', hmacKey: macKey, hmacAlgo: 'SHA512' };
    for (const form of ['-smac:macuser', '-hmac:macuser']) {
        for (const transport of ['http', 'ws']) {
            const name = `signed${form}${transport}`;
            as.add((as) => GenFace.register(as, ccm, name, endpoint[transport], form, options(Object.assign({}, signature))));
            as.add((as) => ccm.iface(name).addEvent(as, 'SIGNED', { b: [1, null, 1.5], a: 'é' }));
            as.add((as, id) => say(`signed ${form} ${transport}`, id));
        }
    }
}

// What the invoker leaves to its users: it calls this to sign with keys made from a Master Secret (FTN8.2).
class Master extends MasterAuth {
    constructor(kds, macAlgo, hash) {
        super();
        Object.assign(this, { kds, macAlgo, hash });
        this.prm = new Date().toISOString().slice(0, 10).replace(/-/g, '');
    }

    signMessage(ctx, req) {
        const signature = this.genMAC(ctx, req).toString('base64');
        req.sec = `-mmac:master-1:${this.macAlgo}:${this.kds}:${this.prm}:${signature}`;
    }

    genMAC(ctx, message) {
        const master = Buffer.from(macKey, 'base64');
        const salt = `${new URL(ctx.endpoint).hostname}:MAC`;
        const hash = this.kds === 'HKDF256' ? 'SHA-256' : 'SHA-512';
        const derived = hkdf(master, master.length, { salt: Buffer.from(salt), info: this.prm, hash });
        return SpecTools.genHMACRaw(this.hash, derived, message);
    }
}

function masterSigned(as, ccm) {
    for (const [kds, algo, hash] of [['HKDF256', 'HS256', 'sha256'], ['HKDF512', 'HS512', 'sha512']]) {
        for (const transport of ['http', 'ws']) {
            const name = `master${kds}${transport}`;
            const masterAuth = new Master(kds, algo, hash);
            as.add((as) => GenFace.register(as, ccm, name, endpoint[transport], 'master', options({ masterAuth })));
            as.add((as) => ccm.iface(name).addEvent(as, 'SIGNED', { b: [1, null, 1.5], a: 'é' }));
            as.add((as, id) => say(`master ${kds} ${transport}`, id));
        }
    }
}

$as().add(
    (as) => {
        const ccm = new AdvancedCCM();
        for (const transport of ['http', 'ws']) {
            for (const version of ['1.0', '1.1']) {
                addAndPoll(as, ccm, transport, version, `${transport}${version.replace('.', '')}`.toUpperCase());
            }
        }
        push(as, ccm, '1.0');
        push(as, ccm, '1.1');
        if (macKey) {
            signed(as, ccm);
            masterSigned(as, ccm);
        }
        as.add((as) => {
            say('done', true);
            clearTimeout(deadline);
            process.exit(0);
        });
    },
    failed,
).execute();
