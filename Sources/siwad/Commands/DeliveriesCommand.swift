import AccountStore
import ArgumentParser
import Basics
import Effects
import Postgres
import Terminal

struct DeliveriesCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "deliveries",
        abstract: "Look at deliveries of changes to endpoints, retry or discard them.",
        discussion: """
            A delivery is named by its endpoint and the position of its change: shop/4711.

            Example:
              siwad deliveries stats
              siwad deliveries show shop/4711
              siwad deliveries retry --endpoint shop --since yesterday --dry-run
              siwad deliveries retry --endpoint shop --since yesterday \\
                  --note 'the receiver is repaired'
            """,
        subcommands: [
            DeliveriesListCommand.self, DeliveriesShowCommand.self, DeliveriesStatsCommand.self,
            DeliveriesRetryCommand.self, DeliveriesDiscardCommand.self,
        ]
    )
}

struct DeliveriesListCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "list",
        abstract: "List deliveries, the latest positions first.",
        usage: "siwad deliveries list [<id> ...] [<options>]",
        discussion: """
            Without --status, lists dead deliveries; with ids, deliveries of any status.

            Example:
              siwad deliveries list --endpoint shop --reason refused
              siwad deliveries list --status retry --json
            """
    )

    @OptionGroup var filter: DeliveryFilterOptions
    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws -> Listing<DeliveryRecord> {
        let usual: [DeliveryStatus] = filter.ids.isEmpty ? [.dead] : []
        let wanted = try filter.filter(otherwise: usual, in: session)
        let noun = filter.status == nil && !usual.isEmpty ? "dead delivery" : "delivery"
        return DeliveryListing.list(try DeliveryRecords.list(wanted, limit: listing.limit, in: session), noun: noun)
    }
}

struct DeliveriesStatsCommand: ListingCommand {
    static let configuration = CommandConfiguration(
        commandName: "stats",
        abstract: "Count deliveries by endpoint, reason, type or app.",
        usage: "siwad deliveries stats [<options>]",
        discussion: "Example:\n  siwad deliveries stats --by reason --endpoint shop"
    )

    @OptionGroup var filter: DeliveryFilterOptions
    @Option(help: "What to count by.")
    var by = DeliveryGrouping.endpoint
    @OptionGroup var listing: ListingOptions

    func rows(in session: borrowing Session) throws -> Listing<DeliveryCount> {
        let filter = try filter.filter(otherwise: [], in: session)
        let rows = try DeliveryRecords.count(filter, by: by, limit: listing.limit, in: session)
        return DeliveryListing.counts(rows, by: by)
    }
}

extension DeliveryGrouping: ExpressibleByArgument {}
extension DeliveryReason: ExpressibleByArgument {}

extension DeliveryID {
    /// `shop/4711`
    fileprivate init(argument text: String) throws {
        guard let id = DeliveryID(text) else { throw ValidationError("write ENDPOINT/POSITION, such as shop/4711") }
        self = id
    }
}

struct DeliveriesShowCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "show",
        abstract: "Show a delivery: its cause, the next step, its failed attempts.",
        usage: "siwad deliveries show <id> [<options>]",
        discussion: "Example:\n  siwad deliveries show shop/4711"
    )

    @Argument(
        help: ArgumentHelp("Endpoint and position, such as shop/4711.", valueName: "id"),
        transform: DeliveryID.init(argument:)
    )
    var id: DeliveryID
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let id = id
        let page = try await invocation.read { session in
            var filter = DeliveryFilter()
            filter.ids = [id]
            guard let record = try DeliveryRecords.list(filter, limit: 1, in: session).first else {
                _ = try Endpoints.find(id.endpoint, in: session)
                let why = nextCommand("changes show \(id.position)")
                throw CommandFailure(.nothingMatched, "there is no delivery \(id): \(why) says why")
            }
            return DeliveryPage(record, attempts: try DeliveryRecords.attempts(at: id, in: session))
        }
        invocation.console.print(page, asJSON: json)
    }
}

// MARK: - Filters

struct DeliveryFilterOptions: ParsableArguments {
    enum StatusChoice: String, CaseIterable, ExpressibleByArgument {
        case pending, retry, dead, discarded, delivered, any
    }

    @Argument(
        help: ArgumentHelp("Endpoint and position of a delivery, such as shop/4711.", valueName: "id"),
        transform: DeliveryID.init(argument:)
    )
    var names: [DeliveryID] = []
    @Option(
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp("Endpoint and position; repeatable.", valueName: "id"),
        transform: DeliveryID.init(argument:)
    )
    var id: [DeliveryID] = []
    @Option(help: ArgumentHelp("Name of an endpoint.", valueName: "name"))
    var endpoint: String?
    @Option(help: "Status of the deliveries.")
    var status: StatusChoice?
    @Option(help: ArgumentHelp("Why the last failed attempt failed.", valueName: "reason"))
    var reason: DeliveryReason?
    @Option(parsing: .unconditional, help: WallTime.help("Made at or after"), transform: WallTime.init(argument:))
    var since: WallTime?
    @Option(parsing: .unconditional, help: WallTime.help("Made before"), transform: WallTime.init(argument:))
    var until: WallTime?
    @Option(
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp("Type of the change, such as consent.revoked; repeatable.", valueName: "type")
    )
    var type: [ChangeEvent.Kind] = []
    @Option(help: ArgumentHelp("App group, by its primary App ID.", valueName: "app-id"), completion: .appID)
    var app: String?
    @Option(help: "Person: sub, or its beginning: 8 characters or more to change something.")
    var sub: String?
    @Flag(help: "Every delivery.")
    var all = false

    /// Each id once, in the order given.
    var ids: [DeliveryID] { (names + id).uniqued() }

    private var isEmpty: Bool {
        ids.isEmpty && type.isEmpty && since == nil && until == nil && reason == nil
            && [endpoint, app, sub].allSatisfy { $0 == nil }
    }

    func validate() throws {
        guard !all || isEmpty else {
            throw ValidationError("--all excludes the other filters: leave it out, or the others")
        }
    }

    /// The advice if nothing selects deliveries.
    var advice: String? {
        guard !all, isEmpty else { return nil }
        return "select deliveries by id, --endpoint, --reason, --since, --until, --type, --app or --sub, or use --all"
    }

    /// - Parameters:
    ///   - usual: the statuses if none is given.
    ///   - minimum: as for ``LookupKey/find(_:atLeast:in:)``.
    /// - Throws: `CommandFailure` for an unknown endpoint, person or app, or `PostgresError`.
    func filter(
        otherwise usual: [DeliveryStatus],
        atLeast minimum: Int = 1,
        in session: borrowing Session
    ) throws -> DeliveryFilter {
        var filter = DeliveryFilter()
        filter.ids = ids
        for name in Set(ids.map(\.endpoint) + [endpoint].compactMap(\.self)) {
            _ = try Endpoints.find(name, in: session)
        }
        filter.endpoint = endpoint
        filter.statuses = status.map { DeliveryStatus(rawValue: $0.rawValue).map { [$0] } ?? [] } ?? usual
        filter.reason = reason?.rawValue
        filter.since = since
        filter.until = until
        filter.change.types = type.map(\.rawValue)
        var account = AccountFilterOptions()
        account.app = app
        account.app = try account.appID(in: session)
        filter.change.app = account.app
        filter.change.subject = try sub.map { try LookupKey.subject.resolve($0, atLeast: minimum, in: session) }
        // Deliveries of an app stay when its client ids are removed.
        if app != nil, try DeliveryRecords.list(filter, limit: 1, in: session).isEmpty {
            try account.checkApp(in: session)
        }
        return filter
    }
}

// MARK: - Retry and discard

struct DeliveriesRetryCommand: DeliveryDecisionCommand {
    static let configuration = CommandConfiguration(
        commandName: "retry",
        abstract: "Deliver again, with a new schedule of attempts.",
        usage: "siwad deliveries retry [<id> ...] --note <text> [<options>]",
        discussion: """
            Retries dead deliveries, or with --status retry, discarded, delivered or any, others. A retried delivery \
            is due immediately and counts its attempts from 1, and later changes of its person wait for it as they do \
            for every first attempt. To an endpoint that is open, siwad sends only probes until siwad endpoints resume or \
            the first success. Deliveries whose attempt is under way are left alone. An interrupted run can be run again.

            Example:
              siwad deliveries retry shop/4711 --note 'receiver repaired'
              siwad deliveries retry --endpoint shop --reason timed-out --rate 50 \\
                  --note 'receiver scaled up'
            """
    )
    static let verb = DeliveryVerb.retry
    @OptionGroup var options: DeliveryDecisionOptions
}

struct DeliveriesDiscardCommand: DeliveryDecisionCommand {
    static let configuration = CommandConfiguration(
        commandName: "discard",
        abstract: "Give deliveries up. They stay on record for SIWAD_DELIVERY_RETENTION.",
        usage: "siwad deliveries discard [<id> ...] --note <text> [<options>]",
        discussion: """
            Discards dead deliveries, or with --status retry, pending or any, others. An attempt that is under way may \
            still reach the receiver.

            Example:
              siwad deliveries discard shop/4711 --note 'handled by hand'
            """
    )
    static let verb = DeliveryVerb.discard
    @OptionGroup var options: DeliveryDecisionOptions
}

protocol DeliveryDecisionCommand: DatabaseCommand, Sendable {
    static var verb: DeliveryVerb { get }
    var options: DeliveryDecisionOptions { get }
}

struct DeliveryDecisionOptions: ParsableArguments {
    @OptionGroup var filter: DeliveryFilterOptions
    @OptionGroup var rehearsal: RehearsalOptions
    @Option(parsing: .unconditional, help: "Deliveries per second; no limit if omitted.")
    var rate: Double?
    @Flag(help: "Print one JSON object; for a dry run, one per group.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func validate() throws {
        try requireNothing(filter.advice, rehearsal.advice)
        try SimulateSendCommand.validate(rate: rate)
    }
}

extension DeliveryDecisionCommand {
    var database: DatabaseOptions { options.database }
    private var participle: String { Self.verb == .retry ? "retried" : "discarded" }

    func validate() throws {
        guard let status = options.filter.status, status != .any else { return }
        let possible = Self.verb.statuses.map(\.rawValue)
        guard !possible.contains(status.rawValue) else { return }
        let others = possible.joined(separator: ", ")
        throw ValidationError("--status \(status.rawValue) can't be \(participle): only \(others) and any can")
    }

    func run(_ invocation: Invocation) async throws {
        let name = try options.rehearsal.name(environment: invocation.environment)
        let command = self
        let filter = try await invocation.read { session in
            let usual: [DeliveryStatus] = command.options.filter.status == .any ? Self.verb.statuses : [.dead]
            var filter = try command.options.filter.filter(otherwise: usual, atLeast: 8, in: session)
            if filter.statuses.isEmpty { filter.statuses = usual }
            return filter
        }
        let action = OperatorAction(
            operatorName: name,
            action: "deliveries \(Self.verb.rawValue)",
            target: filter.text,
            note: options.rehearsal.note,
            affected: 0
        )
        let run = DeliveryRun(Self.verb, filter, as: action, rate: options.rate)
        try await Services.runInterruptibly {
            try await invocation.withDatabase { pool in try await command.run(run, on: pool, invocation.console) }
        }
    }

    private func run(_ run: DeliveryRun, on pool: ConnectionPool, _ console: Console) async throws {
        let total: Int?
        var leftAlone = 0
        if options.rehearsal.dryRun {
            let selection = try await run.selection(on: pool)
            total = selection?.total
            if let selection { preview(selection, console) }
        } else {
            let report = try await perform(run, on: pool, console)
            total = report?.selection.total
            leftAlone = report?.leftAlone ?? 0
            if let report {
                summarize(report, console)
                if Self.verb == .retry, report.changed > 0 { await noteWaiting(report.selection, on: pool, console) }
            }
        }
        let ids = options.filter.ids
        let list = nextCommand("deliveries list \(ids.map(\.description).joined(separator: " "))")
        guard let total else {
            let noun = options.filter.status == nil ? "dead delivery" : "delivery"
            let step = ids.isEmpty ? "" : "; \(list) shows their status"
            throw CommandFailure(.nothingMatched, "no \(noun) matches: nothing was \(participle)\(step)")
        }
        if total < ids.count {
            let what = "\(ids.count - total) of \(ids.count) named can't be \(participle)"
            throw CommandFailure(.partlyFailed, "\(what): \(list) shows their status")
        }
        guard leftAlone == 0 else {
            throw CommandFailure(.partlyFailed, "\(leftAlone) were left alone: they changed, or are being attempted")
        }
    }

    private func perform(
        _ run: DeliveryRun,
        on pool: ConnectionPool,
        _ console: Console
    ) async throws -> DeliveryRun.Report? {
        var progress = ProgressLine(title: Self.verb.rawValue, on: console)
        var done = 0
        do {
            let report = try await run.carryOut(on: pool) { report in
                done = report.changed
                progress.advance(to: done, of: report.selection.total)
            }
            progress.end()
            return report
        } catch {
            progress.end()
            // After Ctrl-C, the operator wants to know even that nothing was done.
            if done > 0 || Task.isCancelled {
                console.note("\(done) \(participle) so far; the same command goes on with what is left")
            }
            throw error
        }
    }

    private func summarize(_ report: DeliveryRun.Report, _ console: Console) {
        let counts = [JSONText.Member(participle, report.changed.json), .init("left_alone", report.leftAlone.json)]
        console.print(options.json ? JSONText.object(counts).line : "\(report.changed) \(participle)")
    }

    /// Names the endpoints to which nothing is delivered at present, and the command that ends this.
    private func noteWaiting(_ selection: DeliverySelection, on pool: ConnectionPool, _ console: Console) async {
        let names = Set(selection.counts.keys.map(\.endpoint))
        // The retry is committed: an error of this query must not make the command fail.
        let statuses = try? await pool.withSession { session throws(PostgresError) -> [String: String] in
            var statuses: [String: String] = [:]
            for (endpoint, state) in try Endpoints.all(in: session) where names.contains(endpoint.name) {
                if endpoint.status != .enabled {
                    statuses[endpoint.name] = endpoint.status.rawValue
                } else if state.openUntil != nil {
                    statuses[endpoint.name] = "open"
                }
            }
            return statuses
        }
        for (name, status) in (statuses ?? [:]).sorted(by: { $0.key < $1.key }) {
            console.note("\(name) is \(status): \(nextCommand("endpoints resume \(name) --note '…'")) delivers now")
        }
    }

    private func preview(_ selection: DeliverySelection, _ console: Console) {
        typealias Row = (group: DeliverySelection.Group, count: Int)
        let rows: [Row] = selection.counts.map { ($0.key, $0.value) }.sorted { one, other in
            (one.group.endpoint, other.count, one.group.reason ?? "")
                < (other.group.endpoint, one.count, other.group.reason ?? "")
        }
        let columns: [Column<Row>] = [
            .init("endpoint", \.group.endpoint, "ENDPOINT", .cutEnd(minimum: 8)),
            .init("status", \.group.status.rawValue, "STATUS"),
            .init("reason", \.group.reason, "REASON"),
            .init("count", \.count, "DELIVERIES", .right),
            .init("would_become", { _ in Self.verb.newStatus.rawValue }, "WOULD BECOME"),
        ]
        if options.json {
            console.print(lines: columns.objects(of: rows).map(\.line))
        } else {
            console.print(lines: columns.table(of: rows).lines(style: console.style))
        }
        console.note("dry run: nothing was changed")
    }
}
