'use strict';

// The npm reference server on SQLite, for bench_futoin.py. Prints "listening <port>" once it serves.

const fs = require('fs');
const net = require('net');
const path = require('path');
require('ws');
require('msgpack-lite');
require('moment');
const sqlite3 = require('sqlite3');
const $as = require('futoin-asyncsteps');
const { AdvancedCCM } = require('futoin-invoker');
const NodeExecutor = require('futoin-executor/NodeExecutor');
const LegacySecurityProvider = require('futoin-executor/LegacySecurityProvider');
const DBServiceApp = require('futoin-eventstream/DBServiceApp');

const file = process.env.SQLITE_FILE;
const tables = path.join(path.dirname(require.resolve('futoin-eventstream/DBServiceApp')), 'sql/active/sqlite/V18.1__Tables.sql');
const failed = (as, error) => { console.log('failed', error, as.state.error_info, as.state.last_exception); process.exit(1); };

function serve(port) {
    $as().add((as) => {
        const ccm = new AdvancedCCM();
        const provider = new LegacySecurityProvider(as, ccm);
        provider.addUser('evtuser', 'evtpass', {});
        const executor = new NodeExecutor(ccm, {
            httpAddr: '127.0.0.1', httpPort: port, httpPath: '/ftn/', secureChannel: true, prodMode: true,
            securityProvider: provider, httpBacklog: 512,
        });
        executor.on('notExpected', (...args) => console.error(...args));
        new DBServiceApp(as, {
            ccm, executor,
            databaseConfig: { DB_EVT_TYPE: 'sqlite', DB_EVT_SOCKET: file, DB_EVT_DB: 'evt' },
        });
        as.add((as) => {
            as.waitExternal();
            setTimeout(() => as.success(), 500); // the HTTP server is up by then, as the services are by now
        });
        as.add((as) => console.log(`listening ${port}`));
    }, failed).execute();
}

const database = new sqlite3.Database(file);
database.exec(fs.readFileSync(tables, 'utf8'), (error) => {
    if (error) { console.log('failed', error); process.exit(1); }
    database.close(() => {
        const probe = net.createServer().listen(0, '127.0.0.1', () => {
            const { port } = probe.address();
            probe.close(() => serve(port));
        });
    });
});
