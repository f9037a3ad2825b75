import AccountStore
import ArgumentParser
import Postgres
import Settings
import Terminal

/// `siwad sessions end`
struct SessionsEndCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "end",
        abstract: "End live sessions as an operator; the audit keeps who did it and why.",
        usage: "siwad sessions end [<sessions> ...] [<options>]",
        discussion: """
            Ends the sessions that are named, or all live ones of a person, and prints them. An application that asks \
            siwa.session_is_live is told with its next question.

            Example:
              siwad sessions end a3f1c5d2 --note 'phone stolen, ticket 4711'
              siwad sessions end --dry-run \\
                  --sub 000768.6166f031167141e695698239959f591a.1521
              siwad sessions end --note 'asked by phone' \\
                  --sub 000768.6166f031167141e695698239959f591a.1521
            """
    )

    @Argument(help: "Sessions to end.")
    var sessions: [String] = []
    @OptionGroup var filter: AccountFilterOptions
    @OptionGroup var rehearsal: RehearsalOptions
    @Flag(name: .long, help: "One JSON object per session.")
    var json = false
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    /// Refuses to end everybody's sessions.
    func validate() throws {
        guard !sessions.isEmpty || filter.sub != nil else {
            throw ValidationError("name sessions, or a person with --sub")
        }
    }

    func run(_ invocation: Invocation) async throws {
        let ids: [String?] = sessions.isEmpty ? [nil] : sessions
        let filters = ids.map {
            SessionFilter(
                id: $0,
                subject: filter.sub,
                team: filter.team,
                app: filter.app,
                liveness: .live,
                limit: nil
            )
        }
        let ended =
            rehearsal.dryRun ? try await matching(filters, invocation) : try await end(filters, invocation)
        if ended.isEmpty { throw CommandFailure(.nothingMatched, "no live session matches: nothing was ended") }
        for id in ended {
            invocation.console.print(
                json ? JSONText.object([.init("session_id", .string(id))]).line : VisibleText.visible(id)
            )
        }
        if rehearsal.dryRun {
            invocation.console.note("dry run: \(counted(ended.count, "session")) would end, nothing was changed")
        } else if !json {
            invocation.console.note("\(ended.count) ended")
        }
        let others = Set(sessions).subtracting(ended).count
        guard others == 0 else {
            let isOne = others == 1
            throw CommandFailure(
                .partlyFailed,
                "\(others) of \(Set(sessions).count) named \(isOne ? "is no live session" : "are no live sessions")"
                    + ": siwad sessions list shows those that are"
            )
        }
    }

    private func end(_ filters: [SessionFilter], _ invocation: Invocation) async throws -> [String] {
        let (name, note) = (try rehearsal.name(environment: invocation.environment), rehearsal.note ?? "")
        return try await Database.with(invocation.configuration) { database in
            try await database.write { session throws(PostgresError) in
                var ended: [String] = []
                for filter in filters {
                    ended += try Sessions.end(filter, by: name, note: note, in: session)
                }
                return ended
            }
        }
    }

    private func matching(_ filters: [SessionFilter], _ invocation: Invocation) async throws -> [String] {
        try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in
                var matching: Set<String> = []
                for filter in filters {
                    matching.formUnion(try Sessions.list(filter, in: session).map(\.id))
                }
                return matching.sorted()
            }
        }
    }
}
