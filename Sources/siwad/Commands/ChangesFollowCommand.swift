import AccountStore
import ArgumentParser
import Basics
import Effects
import Glibc
import Postgres
import Terminal

struct ChangesFollowCommand: DatabaseCommand, Sendable {
    static let configuration = CommandConfiguration(
        commandName: "follow",
        abstract: "Print changes as they are published, until Ctrl-C.",
        usage: "siwad changes follow [<options>]",
        discussion: """
            Starts with the next change, or after the position, time or start that an option names. While the database \
            is unreachable, tries again, and then continues where it was: it prints each change once, in the order of \
            the positions.

            --forward-to sends each event to the receiver that you are working on. What it refuses is not repeated.

            A consumer that must handle each change exactly once reads siwa.changes in its own transaction instead.

            Example:
              siwad changes follow --json --after 4711
              siwad changes follow --type account.deleted --from-start --until-current
              siwad changes follow --secret-file secret \\
                  --forward-to http://127.0.0.1:3000/webhooks
            """
    )

    @OptionGroup var filter: ChangeFilterOptions
    @Option(parsing: .unconditional, help: ArgumentHelp("Start after this position.", valueName: "position"))
    var after: Int64?
    @Flag(help: "Start with the first published change.")
    var fromStart = false
    @Flag(help: "End after the changes that are published now; exit code 4 if none matches.")
    var untilCurrent = false
    @Option(parsing: .unconditional, help: ArgumentHelp("End after this number of changes.", valueName: "count"))
    var limit: Int?
    @Flag(help: "One JSON object per line: the event of each change.")
    var json = false
    @OptionGroup var forwarding: ForwardOptions
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        guard [after != nil, filter.since != nil, fromStart].count(where: { $0 }) <= 1 else {
            throw ValidationError("--after, --since and --from-start exclude each other")
        }
        guard after ?? 0 >= 0 else { throw ValidationError("--after must be a position, or 0") }
        guard !json || forwarding.forwardTo == nil else {
            throw ValidationError("--json and --forward-to exclude each other")
        }
        guard limit ?? 1 > 0 else { throw ValidationError("--limit must be at least 1") }
    }

    func run(_ invocation: Invocation) async throws {
        // A closed pipe is an end like any other, not a death by signal.
        signal(SIGPIPE, SIG_IGN)
        let command = self
        let follow: @Sendable () async throws -> Void = {
            let (position, end, wanted) = try await invocation.read { session in
                let end = try ChangeLog.end(in: session)
                let start = try command.start(end: end, in: session)
                try ChangeFeed.check(start, end: end)
                let wanted = try command.filter.filter(limit: 1_000, in: session)
                try command.checkApp(wanted, in: session)
                return (start, end, wanted)
            }
            let settings = try invocation.configuration.connectionSettings()
            try await command.forwarding.withForwarder { forwarder in
                var feed = ChangeFeed(
                    settings: settings,
                    filter: wanted,
                    position: position,
                    end: command.untilCurrent ? end : nil,
                    limit: command.limit,
                    output: command.json ? .json : forwarder.map { .forwarder($0) } ?? .table,
                    console: invocation.console
                )
                try await feed.run()
            }
        }
        // A signal is the usual end of a follow without an end. One that has an end isn't done before it.
        if untilCurrent || limit != nil {
            try await Services.runInterruptibly(isReading: true, follow)
        } else {
            try await Services.runUntilSignal(follow)
        }
    }

    /// The position to start after.
    private func start(end: Int64, in session: borrowing Session) throws -> Int64 {
        if let after { return after }
        if let since = filter.since { return try ChangeLog.position(at: since, in: session) }
        return fromStart ? 0 : end
    }

    /// - Throws: `CommandFailure` if the app is not registered, and no change has it.
    private func checkApp(_ wanted: ChangeFilter, in session: borrowing Session) throws {
        do {
            try filter.account(with: wanted).checkApp(in: session)
        } catch let failure as CommandFailure {
            // Changes of an app stay when its client ids are removed.
            var changes = ChangeFilter()
            changes.app = wanted.app
            changes.limit = 1
            guard try !ChangeLog.list(changes, in: session).isEmpty else { throw failure }
        }
    }
}

/// Prints changes as they are published, until SIGINT, SIGTERM, the end of the reader, or a limit.
private struct ChangeFeed {
    enum Output {
        case table
        case json
        case forwarder(ChangeForwarder)
    }

    let settings: ConnectionSettings
    var filter: ChangeFilter
    var position: Int64
    /// Ends with this position; nil: never.
    let end: Int64?
    let limit: Int?
    let output: Output
    let console: Console
    var printed = 0
    /// The change at the position. After a failover, the new primary may give its position to another one.
    var lastRead: PublishedChange?

    mutating func run() async throws {
        if case .table = output { console.print(ChangeListing.stream([], style: console.style)[0]) }
        var pauses = Backoff()
        var isReported = false
        while !isDone {
            do {
                let connection = try await PostgresConnection.connect(settings)
                try await withCleanup({ await connection.close() }) {
                    try await connection.withSession { session throws(PostgresError) in
                        try session.execute(script: "LISTEN \(Publication.channel)")
                    }
                    while !isDone {
                        try await read(connection)
                        if isReported { console.note("siwad: connected again; no change was missed") }
                        (isReported, pauses) = (false, Backoff())
                        // The hint may be lost in a pooler, and changes may be published without one.
                        if !isDone { try await connection.waitForNotifications(atMost: .seconds(1)) }
                    }
                }
            } catch let error as PostgresError where isTemporary(error) {
                if !isReported {
                    let cause = CommandFailure(knownCause: error)?.parts?.cause ?? "\(error)"
                    let isStandby = error.sqlState == .readOnlyTransaction
                    let advice = isStandby ? "promote it, or name the primary in SIWAD_DATABASE_URL; " : ""
                    console.report(CommandFailure(.unavailable, cause, nextStep: advice + "trying again"))
                }
                isReported = true
                try await Task.sleep(for: pauses.next())
            }
        }
        if end != nil, printed == 0 { throw CommandFailure(.nothingMatched, "no changes match") }
    }

    /// - Throws: `CommandFailure` if the log does not reach the position: then it may be given to other changes.
    static func check(_ position: Int64, end: Int64) throws(CommandFailure) {
        guard position <= end else {
            throw CommandFailure(
                .failed,
                "position \(position) is ahead of the log, which ends with \(end)",
                nextStep: "the database lost its last changes or is another one; start with --since or --from-start"
            )
        }
    }

    /// After a failover, the standby may answer before it is promoted. Until then it refuses LISTEN.
    private func isTemporary(_ error: PostgresError) -> Bool {
        error.isConnectionError || error.isRetryable || error.sqlState == .readOnlyTransaction && end == nil
    }

    private var isDone: Bool {
        end.map { position >= $0 } ?? false || printed == limit || console.outputError != nil || Console.isOutputClosed
    }

    /// Prints what was published since the last reading.
    private mutating func read(_ connection: PostgresConnection) async throws {
        while !isDone {
            if let limit { filter.limit = min(1_000, limit - printed) }
            let (here, page, last) = try await connection.transaction(.repeatableRead) {
                [position, filter] session throws(PostgresError) in
                let page = try ChangeLog.page(after: position, filter, in: session)
                return (
                    try ChangeLog.find(position: position, in: session), page,
                    try ChangeLog.find(position: page.position, in: session)
                )
            }
            try Self.check(position, end: page.end)
            // nil: the first reading, or the change is older than the retention.
            if let lastRead, let here, here.changeID != lastRead.changeID || here.publishedAt != lastRead.publishedAt {
                throw CommandFailure(
                    .failed,
                    "position \(position) belongs to another change than before",
                    nextStep: "the database lost its last changes; start with --since or --from-start"
                )
            }
            lastRead = last
            let changes = page.changes.filter { end == nil || $0.position <= end ?? 0 }
            switch output {
            case .table:
                console.print(lines: Array(ChangeListing.stream(changes, style: console.style).dropFirst()))
            case .json:
                console.print(lines: changes.map { ChangeEvent($0).envelope.line })
            case .forwarder(let forwarder):
                for change in changes where !Console.isOutputClosed {
                    console.print(try await forwarder.forward(change))
                }
            }
            printed += changes.count
            position = page.position
            if position == page.end { return }
        }
    }
}
