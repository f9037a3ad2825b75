import CLibPQ
import Glibc
import Synchronization

/// Owns one `PGconn`, which only one thread uses at a time.
///
/// Safe to use: the pointer stays inside and is freed once; after ``close()`` it is null, which every function of libpq
/// used here treats as a broken connection.
@safe
struct ConnectionHandle: ~Copyable {
    private var raw: OpaquePointer?
    /// Receives the server's notices while libpq reads. Freed after the connection.
    private let notices = NoticeReceiver()

    init() {
        unsafe raw = nil
    }

    /// Starts to connect. A later parameter overrides an earlier one; `dbname` may hold a URI or a keyword string, which
    /// is expanded at its place in the order.
    mutating func connect(_ parameters: [(keyword: String, value: String)]) {
        close()
        // libpq copies the strings before it returns, and they are freed once after that.
        let keywords = unsafe parameters.map { unsafe strdup($0.keyword) } + [nil]
        let values = unsafe parameters.map { unsafe strdup($0.value) } + [nil]
        defer { unsafe (keywords + values).forEach { unsafe free($0) } }
        unsafe raw = PQconnectStartParams(
            keywords.map { unsafe UnsafePointer($0) },
            values.map { unsafe UnsafePointer($0) },
            1
        )
        // Without a receiver libpq prints notices on standard error. This one lives longer than the connection.
        unsafe PQsetNoticeReceiver(
            raw,
            { notices, notice in
                guard let notices = unsafe notices, let notice = unsafe notice else { return }
                unsafe Unmanaged<NoticeReceiver>.fromOpaque(notices).takeUnretainedValue().received(notice)
            },
            Unmanaged.passUnretained(notices).toOpaque()
        )
    }

    /// True if, since the last call, a commit was reported that the synchronous standbys had not confirmed.
    func takeUnconfirmedCommit() -> Bool { notices.takeUnconfirmedCommit() }

    deinit {
        unsafe PQfinish(raw)
    }

    mutating func close() {
        unsafe PQfinish(raw)
        unsafe raw = nil
    }

    /// Performs one step of connecting and returns what to wait for before the next step.
    func continueConnecting() -> PostgresPollingStatusType { unsafe PQconnectPoll(raw) }

    var isBroken: Bool { unsafe PQstatus(raw) == CONNECTION_BAD }
    var socket: Int32 { unsafe PQsocket(raw) }
    var serverVersion: Int { unsafe Int(PQserverVersion(raw)) }
    var transactionStatus: PGTransactionStatusType { unsafe PQtransactionStatus(raw) }

    /// The backend process as the server, or a pooler in its place, reported it when connecting.
    var reportedProcess: Int32 { unsafe PQbackendPID(raw) }

    /// Host, port and, unless it is a unix socket, address of the server.
    var place: [(keyword: String, value: String)] {
        // libpq returns strings that live as long as the connection; they are copied here.
        let options = unsafe [("host", PQhost(raw)), ("port", PQport(raw)), ("hostaddr", PQhostaddr(raw))]
        return unsafe options.compactMap { keyword, value in
            guard let value = unsafe String(copying: value), !value.isEmpty else { return nil }
            return (keyword, value)
        }
    }

    var endpoint: ServerEndpoint {
        ServerEndpoint(address: place.first { $0.keyword == "hostaddr" }?.value, sslMode: options["sslmode"] ?? "")
    }

    /// The options in force, also from a service file and the environment. They include the password.
    var options: [String: String] {
        guard let options = unsafe PQconninfo(raw) else { return [:] }
        // Freed once, here.
        defer { unsafe PQconninfoFree(options) }
        return unsafe Conninfo.dictionary(options)
    }

    /// libpq's report of the failure to connect. libpq leaves out the name of a host whose address it was given.
    var connectionFailure: PostgresError {
        var report = errorMessage
        let place = Dictionary(uniqueKeysWithValues: place.map { ($0.keyword, $0.value) })
        if let host = place["host"], let address = place["hostaddr"], host != address {
            report = report.replacing("server at \"\(address)\"", with: "server at \"\(host)\" (\(address))")
        }
        return PostgresError(connectionFailure: report)
    }

    /// PostgreSQL's name of the database's encoding; nil if a pooler did not report it.
    var serverEncoding: String? { unsafe String(copying: PQparameterStatus(raw, "server_encoding")) }

    var errorMessage: String {
        // For a closed connection libpq reports that its pointer is NULL, which is no cause.
        guard let raw = unsafe raw else { return "" }
        return unsafe String(copying: PQerrorMessage(raw)) ?? ""
    }

    /// Verbose reports contain the SQLSTATE; libpq offers no other way to learn why connecting failed.
    func setVerbose(_ isVerbose: Bool) {
        unsafe PQsetErrorVerbosity(raw, isVerbose ? PQERRORS_VERBOSE : PQERRORS_DEFAULT)
    }

    func setNonBlocking() -> Bool { unsafe PQsetnonblocking(raw, 1) == 0 }

    /// Sends buffered data: 0 when all is sent, 1 when the socket accepts no more for now, -1 when it broke.
    func flush() -> Int32 { unsafe PQflush(raw) }

    /// Reads what has arrived; false when the connection broke.
    func consumeInput() -> Bool { unsafe PQconsumeInput(raw) == 1 }

    /// Returns the notifications that have arrived (NOTIFY), and forgets them.
    func takeNotifications() -> [PostgresNotification] {
        var taken: [PostgresNotification] = []
        // Each has two strings that end with 0, and is freed once, here.
        while let notification = unsafe PQnotifies(raw) {
            unsafe taken.append(
                PostgresNotification(
                    channel: String(cString: notification.pointee.relname),
                    payload: String(cString: notification.pointee.extra)
                )
            )
            unsafe PQfreemem(notification)
        }
        return taken
    }

    /// True while the next result has not arrived.
    var isBusy: Bool { unsafe PQisBusy(raw) == 1 }

    /// The next result of the current statement, or nil after its last.
    func nextResult() -> ResultHandle? {
        guard let result = unsafe PQgetResult(raw) else { return nil }
        return unsafe ResultHandle(owning: result)
    }

    func send(script: String) -> Bool { unsafe PQsendQuery(raw, script) == 1 }

    func send(prepare sql: String, as name: String, types: [UInt32]) -> Bool {
        unsafe PQsendPrepare(raw, name, sql, Int32(types.count), types) == 1
    }

    /// Requests the execution of a prepared statement, with results in binary.
    func send(prepared name: String, _ binds: Binds) -> Bool {
        unsafe withParameters(binds) { values, lengths, formats in
            unsafe PQsendQueryPrepared(raw, name, Int32(binds.count), values, lengths, formats, 1) == 1
        }
    }

    func enterPipeline() -> Bool { unsafe PQenterPipelineMode(raw) == 1 }

    /// False while results are still to be received.
    func exitPipeline() -> Bool { unsafe PQexitPipelineMode(raw) == 1 }

    /// Requests the execution of a prepared statement, its results before the commit, and the commit.
    func send(pipelined name: String, _ binds: Binds) -> Bool {
        guard send(prepared: name, binds) else { return false }
        return unsafe PQsendFlushRequest(raw) == 1 && PQpipelineSync(raw) == 1
    }

    /// Requests that a statement is parsed and executed, with results in binary.
    func send(once sql: String, _ binds: Binds) -> Bool {
        unsafe withParameters(binds) { values, lengths, formats in
            let types = binds.values.map(\.type)
            return unsafe PQsendQueryParams(raw, sql, Int32(binds.count), types, values, lengths, formats, 1) == 1
        }
    }

    /// A `PGcancel` for this connection, which the caller has to free.
    func makeCancel() -> OpaquePointer? { unsafe PQgetCancel(raw) }

    /// Lends the three arrays that libpq needs. Their pointers point into the buffer of the binds, which outlives `body`.
    private func withParameters(
        _ binds: Binds,
        _ body: (UnsafePointer<UnsafePointer<CChar>?>?, UnsafePointer<Int32>?, UnsafePointer<Int32>?) -> Bool
    ) -> Bool {
        let lengths = binds.values.map { Int32(clamping: max($0.length, 0)) }
        let formats = [Int32](repeating: 1, count: binds.count)
        return unsafe binds.buffer.withUnsafeBytes { buffer in
            let pointers = unsafe binds.values.map { value in
                let start = value.length < 0 ? nil : unsafe buffer.baseAddress.map { unsafe $0 + value.offset }
                return unsafe start?.assumingMemoryBound(to: CChar.self)
            }
            return unsafe body(pointers, lengths, formats)
        }
    }
}

/// Remembers the one notice of the server that matters: a commit that a synchronous standby may lack.
///
/// Only the thread of its connection uses it, because libpq calls the receiver while it is called itself.
private final class NoticeReceiver {
    private var hasUnconfirmedCommit = false

    /// Handles a notice: a `PGresult` that is valid during the call and that libpq frees.
    ///
    /// A cancel request, `statement_timeout` or an administrator can stop a commit that waits for synchronous replication.
    /// The commit cannot be undone at that point, so the server reports success with a warning. The warning has the generic
    /// SQLSTATE and a translated text; only the function in the server's source is the same in every version and language.
    func received(_ notice: OpaquePointer) {
        let function = unsafe String(copying: PQresultErrorField(notice, Int32(CLIBPQ_DIAG_SOURCE_FUNCTION)))
        if function == "SyncRepWaitForLSN" { hasUnconfirmedCommit = true }
    }

    func takeUnconfirmedCommit() -> Bool {
        defer { hasUnconfirmedCommit = false }
        return hasUnconfirmedCommit
    }
}

/// One request to the server to cancel what a connection is doing. It runs on its own thread, because `PQcancel` connects
/// and waits without a deadline.
@safe
final class CancelRequest: Sendable {
    // Used by the one thread that `send` starts, and freed when neither that thread nor the connection refers to this
    // object any more; libpq documents PQcancel as thread-safe.
    private nonisolated(unsafe) let raw: OpaquePointer
    private let finished = Atomic(false)

    private init(_ raw: OpaquePointer) {
        unsafe self.raw = raw
    }

    deinit {
        unsafe PQfreeCancel(raw)
    }

    /// Sends a request, and wakes `thread` when the server has received it; nil if no thread could be started for it.
    static func send(for handle: borrowing ConnectionHandle, waking thread: ConnectionThread) -> CancelRequest? {
        guard let raw = unsafe handle.makeCancel() else { return nil }
        let request = unsafe CancelRequest(raw)
        let isStarted = startThread {
            request.deliver()
            thread.wake()
        }
        return isStarted ? request : nil
    }

    /// True when the server has received the request, or it failed: from then on it cannot cancel a later statement.
    var isFinished: Bool { finished.load(ordering: .acquiring) }

    private func deliver() {
        // libpq writes at most the 256 bytes that it is given. A failed request needs no report: the connection is closed
        // when its statement does not end within the grace period.
        unsafe withUnsafeTemporaryAllocation(of: CChar.self, capacity: 256) { message in
            _ = unsafe PQcancel(raw, message.baseAddress, 256)
        }
        finished.store(true, ordering: .releasing)
    }
}
