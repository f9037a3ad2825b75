import CLibPQ
import Glibc

/// Owns one `PGconn`, which is used by one thread at a time only.
///
/// Safe outside: the pointer stays inside and is freed once; after ``close()`` it is null, which every function of libpq
/// used here takes for a broken connection.
@safe
struct ConnectionHandle: ~Copyable {
    private var raw: OpaquePointer?
    /// What libpq tells of the server's notices while it reads; freed after the connection.
    private let notices = Notices()

    /// No connection.
    init() {
        unsafe raw = nil
    }

    /// Begins to connect. `parameters` in order: a later one overrides an earlier one, and `dbname` may hold a URI or a
    /// keyword string, expanded at its place in the order.
    mutating func connect(_ parameters: [(keyword: String, value: String)]) {
        close()
        let keywords = unsafe parameters.map { unsafe strdup($0.keyword) } + [nil]
        let values = unsafe parameters.map { unsafe strdup($0.value) } + [nil]
        defer { unsafe (keywords + values).forEach { unsafe free($0) } }
        unsafe raw = PQconnectStartParams(
            keywords.map { unsafe UnsafePointer($0) },
            values.map { unsafe UnsafePointer($0) },
            1
        )
        // Without a receiver of its own libpq prints notices on standard error.
        unsafe PQsetNoticeReceiver(
            raw,
            { notices, notice in
                guard let notices = unsafe notices, let notice = unsafe notice else { return }
                unsafe Unmanaged<Notices>.fromOpaque(notices).takeUnretainedValue().received(notice)
            },
            Unmanaged.passUnretained(notices).toOpaque()
        )
    }

    /// Whether, since this was asked last, a commit was reported that the server's synchronous standbys had not confirmed.
    func takeUnconfirmedCommit() -> Bool { notices.takeUnconfirmedCommit() }

    deinit {
        unsafe PQfinish(raw)
    }

    /// Closes the socket and frees everything.
    mutating func close() {
        unsafe PQfinish(raw)
        unsafe raw = nil
    }

    /// One step of connecting; what it returns is what to wait for before the next.
    func continueConnecting() -> PostgresPollingStatusType { unsafe PQconnectPoll(raw) }

    var isBroken: Bool { unsafe PQstatus(raw) == CONNECTION_BAD }

    var socket: Int32 { unsafe PQsocket(raw) }

    var serverVersion: Int { unsafe Int(PQserverVersion(raw)) }

    /// The process that serves this connection, as the server reports it, or a pooler in its place.
    var serverProcess: Int32 { unsafe PQbackendPID(raw) }

    /// Host, port and, unless it is a socket, address of the server that this connection leads to.
    var place: [(keyword: String, value: String)] {
        let options = unsafe [("host", PQhost(raw)), ("port", PQport(raw)), ("hostaddr", PQhostaddr(raw))]
        return unsafe options.compactMap { keyword, value in
            guard let value = unsafe value.map({ unsafe String(cString: $0) }), !value.isEmpty else { return nil }
            return (keyword, value)
        }
    }

    /// Where this connection leads.
    var route: Route {
        var sslMode: String?
        // Holds the password too, so only one option of it is read.
        if let options = unsafe PQconninfo(raw) {
            sslMode = unsafe Conninfo.dictionary(options)["sslmode"]
            unsafe PQconninfoFree(options)
        }
        return Route(address: place.first { $0.keyword == "hostaddr" }?.value, sslMode: sslMode ?? "")
    }

    /// What the database keeps texts in, as PostgreSQL calls it; nil if whoever answered for the server did not say.
    var serverEncoding: String? {
        guard let name = unsafe PQparameterStatus(raw, "server_encoding") else { return nil }
        return unsafe String(cString: name)
    }

    var transactionStatus: PGTransactionStatusType { unsafe PQtransactionStatus(raw) }

    var errorMessage: String {
        // Of a connection that was closed libpq says that its pointer is NULL.
        guard let raw = unsafe raw, let message = unsafe PQerrorMessage(raw) else { return "" }
        return unsafe String(cString: message)
    }

    /// Verbose reports hold the SQLSTATE, which is the only way to learn it of a failure to connect.
    func setVerbose(_ isVerbose: Bool) {
        unsafe PQsetErrorVerbosity(raw, isVerbose ? PQERRORS_VERBOSE : PQERRORS_DEFAULT)
    }

    /// Sending never blocks from here on.
    func setNonBlocking() -> Bool { unsafe PQsetnonblocking(raw, 1) == 0 }

    /// Sends what is waiting: 0 when all is sent, 1 when the socket takes no more for now, -1 when it broke.
    func flush() -> Int32 { unsafe PQflush(raw) }

    /// Reads what has arrived; false when the connection broke.
    func consumeInput() -> Bool { unsafe PQconsumeInput(raw) == 1 }

    /// Whether the next result has not arrived yet.
    var isBusy: Bool { unsafe PQisBusy(raw) == 1 }

    /// The next result of the statement under way, or nil after its last.
    func nextResult() -> ResultHandle? {
        guard let result = unsafe PQgetResult(raw) else { return nil }
        return unsafe ResultHandle(owning: result)
    }

    /// Sends statements by the simple protocol.
    func send(script: String) -> Bool { unsafe PQsendQuery(raw, script) == 1 }

    /// Asks for a statement to be prepared under `name`.
    func send(prepare sql: String, as name: String, types: [UInt32]) -> Bool {
        unsafe PQsendPrepare(raw, name, sql, Int32(types.count), types) == 1
    }

    /// Asks for a prepared statement to be executed, results in binary.
    func send(prepared name: String, _ binds: Binds) -> Bool {
        unsafe withParameters(binds) { values, lengths, formats in
            unsafe PQsendQueryPrepared(raw, name, Int32(binds.count), values, lengths, formats, 1) == 1
        }
    }

    /// From here on statements can be sent before what the ones before them return is taken.
    func enterPipeline() -> Bool { unsafe PQenterPipelineMode(raw) == 1 }

    /// Back to one statement at a time; false while something is still to be taken.
    func exitPipeline() -> Bool { unsafe PQexitPipelineMode(raw) == 1 }

    /// Asks for a prepared statement to be executed, for what it returns at once, and for its commit.
    func send(pipelined name: String, _ binds: Binds) -> Bool {
        guard send(prepared: name, binds) else { return false }
        return unsafe PQsendFlushRequest(raw) == 1 && PQpipelineSync(raw) == 1
    }

    /// Asks for a statement to be parsed and executed, results in binary.
    func send(once sql: String, _ binds: Binds) -> Bool {
        unsafe withParameters(binds) { values, lengths, formats in
            let types = binds.values.map(\.type)
            return unsafe PQsendQueryParams(
                raw,
                sql,
                Int32(binds.count),
                types,
                values,
                lengths,
                formats,
                1
            ) == 1
        }
    }

    /// A way to cancel what this connection is doing, from any thread.
    func makeCancel() -> OpaquePointer? { unsafe PQgetCancel(raw) }

    /// Lends the three arrays that libpq wants, pointing into the buffer of the binds.
    private func withParameters(
        _ binds: Binds,
        _ body: (UnsafePointer<UnsafePointer<CChar>?>?, UnsafePointer<Int32>?, UnsafePointer<Int32>?) -> Bool
    ) -> Bool {
        var lengths: [Int32] = []
        lengths.reserveCapacity(binds.count)
        for value in binds.values { lengths.append(Int32(clamping: max(value.length, 0))) }
        let formats = [Int32](repeating: 1, count: binds.count)
        return unsafe binds.buffer.withUnsafeBytes { buffer in
            var pointers: [UnsafePointer<CChar>?] = unsafe []
            unsafe pointers.reserveCapacity(binds.count)
            for value in binds.values {
                unsafe pointers.append(value.length < 0 ? nil : Self.pointer(into: buffer, at: value.offset))
            }
            return unsafe body(pointers, lengths, formats)
        }
    }

    /// A pointer to a value that is not NULL. An empty value at the very end, or of an empty buffer, still needs a
    /// pointer, since libpq takes null for NULL; it reads no byte there.
    private static func pointer(into buffer: UnsafeRawBufferPointer, at offset: Int) -> UnsafePointer<CChar>? {
        guard let base = buffer.baseAddress else { return unsafe UnsafePointer(emptyValue) }
        return unsafe (base + offset).assumingMemoryBound(to: CChar.self)
    }

    // Points at one zero byte that lives as long as the process and that nobody writes.
    private nonisolated(unsafe) static let emptyValue: UnsafeMutablePointer<CChar> = {
        let byte = UnsafeMutablePointer<CChar>.allocate(capacity: 1)
        unsafe byte.initialize(to: 0)
        return unsafe byte
    }()
}
