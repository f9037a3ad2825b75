import AccountStore
import AppleTokens
import ArgumentParser
import Postgres
import Settings
import Terminal

/// `siwad accounts`
struct AccountsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "accounts",
        abstract: "Look at people: their states, and how they came about.",
        discussion: "Example:\n  siwad accounts show 000768.6166f031167141e695698239959f591a.1521",
        subcommands: [AccountsShowCommand.self, AccountsListCommand.self, AccountsHistoryCommand.self]
    )
}

/// `siwad accounts show`
struct AccountsShowCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Why is somebody signed out: everything about one person, on one screen.",
        usage: "siwad accounts show <sub> [<options>]",
        discussion: """
            Says it in a sentence first. Then the state in each app group, which notification or sign-in set each fact, \
            whether mail arrives, the latest sessions and changes, and the dead letters about the person that are open.

            Example:
              siwad accounts show 000768.6166f031167141e695698239959f591a.1521
            """
    )

    @Argument(help: "Apple's identifier of the person.")
    var sub: String
    @Option(name: .long, help: ArgumentHelp("Only in this developer team.", valueName: "team-id"))
    var team: String?
    @Flag(name: .long, help: "One JSON object per team.")
    var json = false
    @Option(
        name: .long,
        parsing: .unconditional,
        help: ArgumentHelp("At most so many sessions, changes and letters.", valueName: "count")
    )
    var limit = 10
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    /// Refuses a limit that can't be met.
    func validate() throws {
        guard limit > 0 else { throw ValidationError("--limit must be at least 1") }
    }

    func run(_ invocation: Invocation) async throws {
        let (sub, team, limit) = (sub, team, limit)
        let pages = try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in
                try AccountPage.pages(subject: sub, team: team, limit: limit, in: session)
            }
        }
        guard !pages.isEmpty else {
            throw CommandFailure(.nothingMatched, "nobody of this sub is known: siwad accounts list shows who is")
        }
        for (index, page) in pages.enumerated() {
            if json {
                invocation.console.print(page.json.line)
            } else {
                invocation.console.print(lines: (index > 0 ? [""] : []) + page.lines(style: invocation.console.style))
            }
        }
    }
}

extension AccountPage {
    /// A page for each team that knows the person.
    static func pages(
        subject: String,
        team: String?,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountPage] {
        var pages: [AccountPage] = []
        for registers in try Accounts.registers(subject: subject, team: team, in: session) {
            let (person, team) = (registers.subject, registers.team)
            let filter = AccountFilter(subject: subject, team: team.rawValue, limit: limit)
            // Of app groups there are as many as an operator configured: all of them.
            let states = AccountFilter(subject: subject, team: team.rawValue, limit: .max)
            let sessions = SessionFilter(subject: subject, team: team.rawValue, limit: limit)
            pages.append(
                AccountPage(
                    registers: registers,
                    registersWithSources: try Accounts.sources(subject: person, team: team, in: session),
                    states: try Accounts.states(states, in: session),
                    sessionCounts: try Sessions.count(subject: person, team: team, in: session),
                    sessions: try Sessions.list(sessions, in: session),
                    history: try Accounts.history(filter, in: session),
                    letters: try DeadLetters.open(about: person, of: team, limit: limit, in: session)
                )
            )
        }
        return pages
    }
}

/// `siwad accounts list`
struct AccountsListCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List people and their state in each app group, the latest first.",
        usage: "siwad accounts list [<options>]",
        discussion: "Example:\n  siwad accounts list --state revoked --json"
    )

    @OptionGroup var filter: AccountFilterOptions
    @Option(name: .long, help: "authorized, revoked, deleted or unknown.")
    var state: String?
    @OptionGroup var listing: ListingOptions
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    /// Refuses states that no account has.
    func validate() throws {
        try AccountFilterOptions.check(state, "--state", ["authorized", "revoked", "deleted", "unknown"])
    }

    func run(_ invocation: Invocation) async throws {
        let filter = AccountFilter(
            subject: filter.sub,
            team: filter.team,
            app: filter.app,
            state: state,
            limit: listing.limit
        )
        let rows = try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in try Accounts.states(filter, in: session) }
        }
        try AccountListings.states(rows).print(listing, to: invocation.console)
    }
}

/// `siwad accounts history`
struct AccountsHistoryCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "history",
        abstract: "List changes of state, the latest last.",
        usage: "siwad accounts history [<person>] [<options>]",
        discussion: "Example:\n  siwad accounts history 000768.6166f031167141e695698239959f591a.1521"
    )

    @Argument(help: "Apple's identifier of the person; everybody if it is left out.")
    var person: String?
    @OptionGroup var filter: AccountFilterOptions
    @OptionGroup var listing: ListingOptions
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags }

    /// Refuses two people at once.
    func validate() throws {
        guard person == nil || filter.sub == nil else {
            throw ValidationError("name the person once: as the argument, or with --sub")
        }
    }

    func run(_ invocation: Invocation) async throws {
        let filter = AccountFilter(
            subject: person ?? filter.sub,
            team: filter.team,
            app: filter.app,
            limit: listing.limit
        )
        let rows = try await Database.with(invocation.configuration) { database in
            try await database.read { session throws(PostgresError) in try Accounts.history(filter, in: session) }
        }
        try AccountListings.history(rows).print(listing, to: invocation.console)
    }
}
