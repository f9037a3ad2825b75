import AppleClient
import NotificationServer
import Postgres
import Settings

/// A command that takes every setting as an option.
protocol DaemonCommand: Command {
    var options: DaemonOptions { get }
}

extension DaemonCommand {
    var flags: [SettingKey: String] { options.flags }
}

/// A command that reads or writes the database.
protocol DatabaseCommand: Command {
    var database: DatabaseOptions { get }
}

extension DatabaseCommand {
    var common: CommonOptions { database.common }
    var flags: [SettingKey: String] { database.flags }
}

/// A command that lists rows of the database.
protocol ListingCommand: DatabaseCommand, Sendable {
    associatedtype Row: Sendable

    var listing: ListingOptions { get }

    /// Reads at most as many rows as `--limit` allows.
    func rows(in session: borrowing Session) throws(PostgresError) -> [Row]

    func output(_ rows: [Row]) -> Listing<Row>
}

extension ListingCommand {
    var database: DatabaseOptions { listing.database }

    func run(_ invocation: Invocation) async throws {
        let command = self
        let rows = try await invocation.read { session throws(PostgresError) in try command.rows(in: session) }
        try output(rows).print(listing, to: invocation.console)
    }
}

// MARK: - Event loops

/// Runs `body`, then `cleanup`, whether `body` failed or not: `defer` cannot await.
func withCleanup<Value, Failure>(
    _ cleanup: () async -> Void,
    _ body: () async throws(Failure) -> Value
) async throws(Failure) -> Value {
    let result: Result<Value, Failure>
    do throws(Failure) {
        result = .success(try await body())
    } catch {
        result = .failure(error)
    }
    await cleanup()
    return try result.get()
}

extension EventLoops {
    /// Lends one event loop to `body`.
    static func withOne<Value, Failure>(
        _ body: (EventLoops) async throws(Failure) -> Value
    ) async throws(Failure) -> Value {
        let loops = EventLoops.start(count: 1)
        return try await withCleanup(loops.stop) { () async throws(Failure) in try await body(loops) }
    }
}

extension KeySetFetcher {
    /// Fetches a key set once, with its own event loop.
    static func fetchOnce(_ url: KeySetURL) async throws(AppleClientError) -> [UInt8] {
        try await EventLoops.withOne { loops async throws(AppleClientError) in
            try await KeySetFetcher(url: url, version: Version.current, eventLoopGroup: loops.group).fetch()
        }
    }
}
