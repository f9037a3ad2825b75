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
        abstract: "Show one session: is it live, and if not, who or what ended it, and why.",
        usage: "siwad sessions show <session> [<options>]",
        discussion: "Example:\n  siwad sessions show a3f1c5d2"
    )

    @Argument(help: "The session's id, or the beginning of only one.")
    var session: String
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let id = session
        let pages = try await invocation.read { session in
            let filter = SessionFilter(id: try LookupKey.session.resolve(id, in: session))
            var pages: [SessionPage] = []
            for found in try Sessions.list(filter, in: session) {
                let registers = try Accounts.sources(subject: found.subject, team: found.team, in: session)
                pages.append(SessionPage(session: found, registers: registers))
            }
            return pages
        }
        for page in pages { invocation.console.print(page, asJSON: json) }
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
            with them.

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
    @OptionGroup var filter: AccountFilterOptions
    @OptionGroup var rehearsal: RehearsalOptions
    @Flag(help: "Print one JSON object per session.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    /// Prevents ending the sessions of all people by mistake.
    func validate() throws {
        let names = !sessions.isEmpty || filter.sub != nil
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
            throw CommandFailure(.nothingMatched, "no live session matches: nothing was ended")
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
        let (sessions, filter) = (sessions, filter)
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
