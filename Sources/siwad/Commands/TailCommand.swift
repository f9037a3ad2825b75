import AccountStore
import ArgumentParser
import Glibc
import Postgres
import Terminal

struct TailCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "tail",
        abstract: "Print notifications as they are stored, until Ctrl-C.",
        usage: "siwad tail [<options>]",
        discussion: """
            The short form of siwad notifications list --follow. Starts with the latest --limit notifications. While \
            the database is unreachable, tries again every second.

            Example:
              siwad tail --type account-deleted
              siwad tail --json --since today
            """
    )

    @OptionGroup var filter: NotificationFilterOptions
    @OptionGroup var listing: ListingOptions

    var database: DatabaseOptions { listing.database }

    func run(_ invocation: Invocation) async throws {
        try await NotificationTail(options: filter, listing: listing).run(invocation)
    }
}

/// Prints notifications as they are stored, until SIGINT, SIGTERM or the end of the reader.
struct NotificationTail: Sendable {
    let options: NotificationFilterOptions
    let listing: ListingOptions

    private var json: Bool { listing.json }

    func run(_ invocation: Invocation) async throws {
        // A closed pipe is an end like any other, not a death by signal.
        signal(SIGPIPE, SIG_IGN)
        try await Services.runUntilSignal {
            let (options, limit) = (options, listing.limit)
            let filter = try await invocation.read { try options.filter(limit: limit, in: $0) }
            try await invocation.withDatabase { pool in try await follow(filter, pool, invocation.console) }
        }
    }

    private func follow(_ filter: NotificationFilter, _ pool: ConnectionPool, _ console: Console) async throws {
        var follower = NotificationFollower(filter)
        var isConnected = true
        if !json { console.print(NotificationListing.stream([], style: console.style)[0]) }
        while console.outputError == nil, !Console.isOutputClosed {
            let start = ContinuousClock.now
            do throws(PostgresError) {
                let reading = try await pool.transaction { [follower] session throws(PostgresError) in
                    try follower.read(in: session)
                }
                if !isConnected { console.note("siwad: connected again; no notification was missed") }
                isConnected = true
                print(follower.advance(with: reading), console)
            } catch {
                guard error.isConnectionError || error.isRetryable else { throw error }
                if isConnected {
                    let cause = CommandFailure(knownCause: error)?.parts?.cause ?? "\(error)"
                    console.report(CommandFailure(.unavailable, cause, nextStep: "trying again"))
                }
                isConnected = false
            }
            // Readings of heavy traffic take at most a fifth of the time.
            try await Task.sleep(for: max(.seconds(1), (.now - start) * 4))
        }
    }

    private func print(_ rows: [LoggedNotification], _ console: Console) {
        let lines = NotificationListing.stream(rows, style: console.style).dropFirst()
        console.print(lines: json ? NotificationListing.list(rows).json.map(\.line) : Array(lines))
    }
}
