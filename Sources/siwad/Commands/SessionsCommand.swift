import AccountStore
import AppleTokens
import ArgumentParser
import Basics
import Postgres
import Terminal

struct SessionsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sessions",
        abstract: "Look at sessions, and end them.",
        discussion: "Example:\n  siwad sessions end a3f1c5d2 --note 'phone stolen, ticket 4711'",
        subcommands: [SessionsListCommand.self, SessionsShowCommand.self, SessionsEndCommand.self]
    )
}

struct SessionsListCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List sessions, the last opened first.",
        usage: "siwad sessions list [<options>]",
        discussion: """
            --sub uses an index. The other filters scan the sessions opened between --since and --until, the newest \
            first, until --limit is reached: in a large database, add --since.

            Example:
              siwad sessions list --ended --reason consent-revoked \\
                  --app com.example.app --since 2026-01-01
            """
    )

    @OptionGroup var filter: AccountFilterOptions
    @Flag(help: "Only live sessions.")
    var live = false
    @Flag(help: "Only sessions that ended or expired.")
    var ended = false
    @Option(
        help: ArgumentHelp(
            "consent-revoked, account-deleted, signed-out, rotated, operator or expired.",
            valueName: "reason"
        ),
        completion: .list(SessionFilter.endReasons)
    )
    var reason: String?
    @Option(parsing: .unconditional, help: WallTime.help("Opened at or after"), transform: WallTime.init(argument:))
    var since: WallTime?
    @Option(parsing: .unconditional, help: WallTime.help("Opened before"), transform: WallTime.init(argument:))
    var until: WallTime?
    @OptionGroup var listing: ListingOptions

    func validate() throws {
        guard reason.map(SessionFilter.endReasons.contains) ?? true else {
            throw ValidationError("--reason is one of \(SessionFilter.endReasons.joined(separator: ", "))")
        }
        guard !live || !ended else { throw ValidationError("--live and --ended exclude each other") }
        guard !live || reason == nil else { throw ValidationError("a --live session has no --reason") }
    }

    func rows(in session: borrowing Session) throws -> Listing<AccountSession> {
        let sessions = SessionFilter(
            subject: try filter.subject(in: session),
            team: filter.team,
            app: try filter.appID(in: session),
            liveness: live ? .live : ended ? .ended : nil,
            endReason: reason,
            since: since,
            until: until,
            limit: listing.limit
        )
        let rows = try Sessions.list(sessions, in: session)
        return try AccountListings.sessions(rows).explained(by: filter, in: session)
    }
}

struct SessionsShowCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show sessions: is each live, and if not, who or what ended it, and why.",
        usage: "siwad sessions show <session> ... [<options>]",
        discussion: """
            Write -- or --id before an id that starts with a hyphen.

            Example:
              siwad sessions show a3f1c5d2
            """
    )

    @Argument(help: ArgumentHelp("Ids of sessions, or the beginning of only one each.", valueName: "session"))
    var sessions: [String] = []
    @Option(
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp("Id of a session; repeatable.", valueName: "session")
    )
    var id: [String] = []
    @Flag(help: "Print one JSON object per session.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        try requireNothing(sessions.isEmpty && id.isEmpty ? "name sessions by their ids" : nil)
    }

    func run(_ invocation: Invocation) async throws {
        let names = (sessions + id).uniqued()
        let (pages, missing) = try await invocation.read { session in
            let ids = try names.map { try LookupKey.session.find($0, in: session) }
            var pages: [SessionPage] = []
            for id in ids.compactMap(\.self).uniqued() {
                for row in try Sessions.list(SessionFilter(id: id), in: session) {
                    let registers = try Accounts.sources(subject: row.subject, team: row.team, in: session)
                    pages.append(SessionPage(session: row, registers: registers))
                }
            }
            return (pages, zip(names, ids).filter { $1 == nil }.map(\.0))
        }
        let list = nextCommand("sessions list")
        guard !pages.isEmpty else {
            let what = names.count == 1 ? "this id" : "these ids"
            throw CommandFailure(.nothingMatched, "no session has \(what): \(list) shows some")
        }
        invocation.console.print(pages: pages, asJSON: json)
        guard missing.isEmpty else { throw CommandFailure(missing: missing, of: names.count, list: list) }
    }
}

struct SessionsEndCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "end",
        abstract: "End live sessions; the audit records the operator and the note.",
        usage: "siwad sessions end [<session> ...] [<options>]",
        discussion: """
            Ends the named sessions, or all live sessions of a person, and prints them. The application sees the end \
            with its next call of siwa.session_is_live. Eight or more characters may stand for the only id that begins \
            with them. Write -- or --id before an id that starts with a hyphen.

            Example:
              siwad sessions end a3f1c5d2 --note 'phone stolen, ticket 4711'
              siwad sessions end --dry-run \\
                  --sub 000768.6166f031167141e695698239959f591a.1521
              siwad sessions end --note 'asked by phone' \\
                  --sub 000768.6166f031167141e695698239959f591a.1521
            """
    )

    @Argument(help: ArgumentHelp("Ids of the sessions to end.", valueName: "session"))
    var sessions: [String] = []
    @Option(
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp("Id of a session to end; repeatable.", valueName: "session")
    )
    var id: [String] = []
    @OptionGroup var filter: AccountFilterOptions
    @OptionGroup var rehearsal: RehearsalOptions
    @Flag(help: "Print one JSON object per session.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    /// Prevents ending the sessions of all people by mistake.
    func validate() throws {
        let names = !sessions.isEmpty || !id.isEmpty || filter.sub != nil
        try requireNothing(names ? nil : "name sessions, or a person with --sub", rehearsal.advice)
    }

    func run(_ invocation: Invocation) async throws {
        let (name, note) = (try rehearsal.name(environment: invocation.environment), rehearsal.note ?? "")
        let filters = try await filters(invocation)
        let isDryRun = rehearsal.dryRun
        let ended = try await invocation.write { session throws(PostgresError) in
            var ended: [String] = []
            for filter in filters {
                ended +=
                    isDryRun
                    ? try Sessions.list(filter, in: session).map(\.id)
                    : try Sessions.end(filter, by: name, note: note, in: session)
            }
            return isDryRun ? Set(ended).sorted() : ended
        }
        guard !ended.isEmpty else {
            let filter = filter
            try await invocation.read { try filter.checkApp(in: $0) }
            throw CommandFailure(
                .nothingMatched,
                "no live session matches: nothing was ended; an id may be cut to 8 or more of its first characters"
            )
        }
        let wouldHappen = isDryRun ? "\(counted(ended.count, "session")) would end" : nil
        invocation.console.print(ended, as: "session_id", asJSON: json, "ended", wouldHappen: wouldHappen)
        let named = Set(filters.compactMap(\.id))
        let missing = named.subtracting(ended).count
        guard missing == 0 else {
            let what = missing == 1 ? "is not a live session" : "are not live sessions"
            let count = "\(missing) of \(named.count) named \(what)"
            throw CommandFailure(.partlyFailed, "\(count): \(nextCommand("sessions list --live")) shows the live ones")
        }
    }

    /// One for each session that is named. An id that is not stored keeps its text.
    private func filters(_ invocation: Invocation) async throws -> [SessionFilter] {
        let (sessions, filter) = ((sessions + id).uniqued(), filter)
        return try await invocation.read { session in
            let sub = try filter.sub.map { try LookupKey.subject.resolve($0, atLeast: 8, in: session) }
            let app = try filter.appID(in: session)
            var ids: [String?] = sessions.isEmpty ? [nil] : []
            for id in sessions { ids.append(try LookupKey.session.find(id, atLeast: 8, in: session) ?? id) }
            return ids.map {
                SessionFilter(id: $0, subject: sub, team: filter.team, app: app, liveness: .live, limit: nil)
            }
        }
    }
}
