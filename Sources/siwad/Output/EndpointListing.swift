import AccountStore
import Basics
import Terminal

enum EndpointListing {
    /// The kind has a column only if there are several.
    static func list(_ rows: [EndpointOverview], now: WallTime) -> Listing<EndpointOverview> {
        let kind = Set(rows.map(\.endpoint.configuration.kind)).count > 1 ? ["KIND"] : []
        return Listing(
            rows: rows,
            noun: "endpoint",
            columns: columns(now: now),
            titles: ["NAME"] + kind + ["STATUS", "BEHIND", "OLDEST", "RETRY", "DEAD", "LAST SUCCESS (UTC)", "WHY"]
        )
    }

    static func columns(now: WallTime) -> [Column<EndpointOverview>] {
        [
            .init("name", \.endpoint.name, "NAME", .cutEnd(minimum: 4)),
            .init("kind", \.endpoint.configuration.kind.rawValue, "KIND"),
            .init("status", \.endpoint.status.rawValue, "STATUS") { status($0) },
            .init("circuit") { $0.isOpen ? "open" : "closed" },
            .init("position", \.position),
            .init("behind", \.behind, "BEHIND", .right),
            .init("oldest_at", \.oldestAt, "OLDEST") { row in
                Table.Cell(row.oldestAt.map { now.duration(since: $0).rounded })
            },
            .init("retry", \.retry, "RETRY", .right),
            .init("waiting") { $0.behind + $0.retry },
            .init("dead", \.dead, "DEAD", .right) { Table.Cell("\($0.dead)", color: $0.dead > 0 ? .red : nil) },
            .init("last_success_at", \.state.lastSuccessAt, "LAST SUCCESS (UTC)") {
                Table.Cell($0.state.lastSuccessAt?.secondText)
            },
            .init("reason", \.reason),
            .init("http_status", \.httpStatus),
            .init("detail", \.detail),
            .init("secret_fingerprint", \.fingerprint),
            .init(title: "WHY", .cutEnd(minimum: 8)) { Table.Cell($0.why(now: now)) },
        ]
    }

    private static func status(_ row: EndpointOverview) -> Table.Cell {
        let color: Color =
            switch row.endpoint.status {
            case .enabled: row.isOpen ? .yellow : .green
            case .paused: .yellow
            case .disabled: .red
            }
        return Table.Cell(row.status, color: color)
    }
}

extension EndpointOverview {
    /// True if siwad attempts nothing but probes.
    var isOpen: Bool { endpoint.status == .enabled && state.openUntil != nil }

    /// `open` for an enabled endpoint whose circuit is open.
    var status: String { isOpen ? "open" : endpoint.status.rawValue }

    /// True if it has failed since its last success, or if its receiver has asked for a pause, which is no failure.
    private var hasTrouble: Bool { state.failingSince != nil || state.openUntil != nil }

    /// Why it is not enabled or has trouble: an operator, or the reason of the last failure or pause.
    fileprivate var reason: String? { endpoint.statusReason?.rawValue ?? (hasTrouble ? state.lastReason : nil) }

    fileprivate var httpStatus: Int? { hasTrouble ? state.lastHTTPStatus : nil }

    fileprivate var detail: String? { hasTrouble ? state.lastDetail : nil }

    /// `failed (HTTP 503)`, or without an answer `unreachable: the connection was refused`.
    private var failure: String? {
        guard let reason = state.lastReason else { return nil }
        if let status = state.lastHTTPStatus { return "\(reason) (HTTP \(status))" }
        return reason + (state.lastDetail.map { ": \($0)" } ?? "")
    }

    func why(now: WallTime) -> String? {
        switch endpoint.statusReason {
        case .operator: return "operator" + (pauseNote.map { ": \($0)" } ?? "")
        case .gone: return "gone: the receiver wants no more"
        case .failing: return "failing: \(failure ?? "no success")"
        case nil: break
        }
        guard hasTrouble, let failure else { return nil }
        guard let openUntil = state.openUntil else { return failure }
        let wait = openUntil.duration(since: now)
        let isThrottled = state.lastReason == DeliveryReason.throttled.rawValue
        return "\(failure); \(isThrottled ? "asked" : "probed") again " + (wait > .zero ? "in \(wait.rounded)" : "now")
    }
}

/// Everything about one endpoint, without its secrets.
struct EndpointPage: CommandOutput {
    private let overview: EndpointOverview
    private let now: WallTime

    init(_ overview: EndpointOverview, now: WallTime) {
        self.overview = overview
        self.now = now
    }

    private var configuration: EndpointConfiguration { overview.endpoint.configuration }

    func lines(style: OutputStyle) -> [String] {
        let title = "\(overview.endpoint.name), \(overview.status)"
        let named = EndpointField.allCases.map { field in
            (field.rawValue.replacing("_", with: " "), shown(field))
        }
        return [style.painted(title, .bold)] + style.facts(health, nameWidth: 15) + [""]
            + style.facts(named, nameWidth: 15)
    }

    var json: [JSONText] {
        let fields = EndpointField.allCases.map { JSONText.Member($0.rawValue, value(of: $0)) }
        let further: [Column<Endpoint>] = [
            .init("status_at", \.statusAt), .init("created_at", \.createdAt),
        ]
        return [
            .object(
                EndpointListing.columns(now: now).members(of: overview) + fields
                    + further.members(of: overview.endpoint)
            )
        ]
    }

    /// Types and apps are null, as in `siwa.endpoints`, for an endpoint that gets the changes of all.
    private func value(of field: EndpointField) -> JSONText {
        let texts = field.texts(in: configuration).map { JSONText.string($0) }
        return switch field {
        case .types: configuration.types == nil ? .null : .array(texts)
        case .apps: configuration.apps == nil ? .null : .array(texts)
        case .concurrency: .integer(Int64(configuration.concurrency))
        case .rate: configuration.rate.map(JSONText.number) ?? .null
        case .retries, .include: .array(texts)
        case .url, .ordering, .timeout, .disableAfter, .signature: texts.first ?? .null
        }
    }

    private func shown(_ field: EndpointField) -> String {
        let texts = field.texts(in: configuration).map { VisibleText.visible($0) }
        guard texts.isEmpty else { return texts.joined(separator: ", ") }
        return switch field {
        case .types: "all but siwa.consent.authorized"
        case .apps: "all"
        case .rate: "no limit"
        default: "none"
        }
    }

    private var health: [(name: String, text: String)] {
        let waiting = overview.oldestAt.map { ", the oldest for \(now.duration(since: $0).rounded)" } ?? ""
        let secret = overview.fingerprint ?? "none, or hidden from this database role"
        let facts: [(String, String?)] = [
            ("why", overview.why(now: now).map { VisibleText.visible($0) }),
            ("since", "\(overview.endpoint.statusAt.secondText) UTC"),
            ("last success", overview.state.lastSuccessAt.map { "\($0.secondText) UTC" } ?? "none yet"),
            ("failing since", overview.state.failingSince.map { "\($0.secondText) UTC" }),
            (
                "behind",
                "\(counted(overview.behind, "change"))\(waiting); attempted up to position \(overview.position)"
            ),
            ("retry", "\(overview.retry)"), ("dead", "\(overview.dead)"), ("secret", secret),
            ("added", "\(overview.endpoint.createdAt.secondText) UTC"),
        ]
        return facts.compactMap { name, text in text.map { (name, $0) } }
    }
}
