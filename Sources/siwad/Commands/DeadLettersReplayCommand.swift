import AccountStore
import AppleClient
import AppleTokens
import ArgumentParser
import Ingest
import JOSE
import NotificationServer
import Postgres
import Settings
import Terminal

/// `siwad dead-letters replay`
struct DeadLettersReplayCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "replay",
        abstract: "Process open letters after all, the way that live notifications go.",
        discussion: """
            Each letter's effects and its new status are committed together: interrupted at any point, run it again and \
            it carries on with what is left. Two operators may replay at once. What is older than what is known changes \
            nothing. A letter that fails again stays open, with what was found. So does a letter that is older than SIWAD_RETENTION.

            A dry run replays 2,048 letters at a time, with the earlier ones about the same people, and takes it all back, \
            so that live notifications about them wait for a moment only. Letters that were never verified \
            (keys-unavailable) tell of nobody: those that are further apart are taken each as if it were the only one.

            Example:
              siwad dead-letters replay --reason unknown-audience --dry-run
              siwad dead-letters replay --reason unknown-audience --rate 500 \\
                  --note 'app added to SIWAD_APPS'
            """
    )

    @OptionGroup var filter: DeadLetterFilterOptions
    @OptionGroup var rehearsal: RehearsalOptions
    @Option(name: .long, parsing: .unconditional, help: "So many letters a second; as fast as it goes if left out.")
    var rate: Double?
    @Flag(name: .customLong("accept-expired"), help: "Take letters too that had come after their exp.")
    var acceptExpired = false
    @Flag(name: .long, help: "One JSON object; of a dry run, one for each letter.")
    var json = false
    @Option(
        name: .long,
        parsing: .unconditional,
        help: ArgumentHelp("At most so many letters, the oldest first; all if left out.", valueName: "count")
    )
    var limit: Int?
    @OptionGroup var acceptance: AcceptanceOptions
    @OptionGroup var database: DatabaseOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { database.flags.merging(acceptance.flags) { first, _ in first } }

    /// Refuses limits and rates that can't be, and to replay everything by accident.
    func validate() throws {
        try filter.validateIsGiven()
        guard limit.map({ $0 > 0 }) ?? true else { throw ValidationError("--limit must be at least 1") }
        // Slower ones lead to times that no clock can tell.
        guard rate.map({ $0 >= 0.001 && $0.isFinite }) ?? true else {
            throw ValidationError("--rate must be at least 0.001")
        }
    }

    func run(_ invocation: Invocation) async throws {
        let configuration = invocation.configuration
        let name = try rehearsal.name(environment: invocation.environment)
        try await Database.with(configuration) { _ in }
        let url = try configuration.keySetURL()
        let replay = DeadLetterReplay(
            policy: try configuration.policy(),
            trust: try configuration.keyTrust(),
            retention: configuration.retention,
            fetchKeys: { try JSONWebKeySet(parsing: try await KeySetFetcher.fetchOnce(url)).keys }
        )
        var letters = filter.filter
        letters.limit = limit
        let run = ReplayRun(
            letters,
            by: name,
            note: rehearsal.note ?? "",
            rate: rate,
            acceptsExpired: acceptExpired,
            isRehearsal: rehearsal.dryRun
        )
        let settings = try configuration.connectionSettings()
        let console = invocation.console
        let command = self
        try await Interruption.endsAfter { try await command.carryOut(run, replay, settings, console) }
    }

    private func carryOut(
        _ run: ReplayRun,
        _ replay: DeadLetterReplay,
        _ settings: ConnectionSettings,
        _ console: Console
    ) async throws {
        var output = ReplayOutput(isRehearsal: rehearsal.dryRun, json: json, limit: limit, console: console)
        do {
            let report = try await replay.run(run, connecting: settings) { output.take($0, $1) }
            guard let report else {
                throw CommandFailure(.nothingMatched, "no open dead letter matches: nothing was replayed")
            }
            try output.finish(report)
            // With a limit, those that are missing may be those beyond it.
            if limit == nil, let failure = filter.failure(matched: report.matched, status: .open) { throw failure }
        } catch let error as CommandFailure {
            throw error
        } catch {
            output.interrupt()
            throw error
        }
    }
}

extension KeySetFetcher {
    /// Fetches a key set with an event loop of its own, for commands that need it once.
    static func fetchOnce(_ url: KeySetURL) async throws(AppleClientError) -> [UInt8] {
        let loops = EventLoops.start(count: 1)
        let fetched: Result<[UInt8], AppleClientError>
        do throws(AppleClientError) {
            fetched = .success(
                try await KeySetFetcher(url: url, version: Version.current, eventLoopGroup: loops.group).fetch()
            )
        } catch {
            fetched = .failure(error)
        }
        await loops.stop()
        return try fetched.get()
    }
}
