package import Basics
import Postgres

/// What operators decide about an endpoint, in `siwa.endpoints`.
package struct EndpointConfiguration: Sendable, Equatable {
    package enum Kind: String, PostgresValue, Sendable, CaseIterable {
        case webhook
        case setPush = "set-push"
        case setPoll = "set-poll"
    }

    /// What a change waits for among the earlier changes of its person.
    package enum Ordering: String, PostgresValue, Sendable, CaseIterable {
        /// The end of their first attempts.
        case attempt
        /// Their end: delivered, dead or discarded.
        case person
        case none
    }

    package enum Signature: String, PostgresValue, Sendable, CaseIterable {
        case hmac
        case ed25519
        case both

        /// The kinds of secrets that it needs.
        package var purposes: [SealedEndpointSecret.Purpose] {
            switch self {
            case .hmac: [.hmac]
            case .ed25519: [.ed25519]
            case .both: [.hmac, .ed25519]
            }
        }
    }

    /// Lower-case letters, digits and hyphens; the label of metrics.
    package var name: String
    package var kind: Kind = .webhook
    /// nil only for an endpoint that is polled.
    package var url: String?
    /// Names of the event catalogue; nil: all but `siwa.consent.authorized`.
    package var types: [String]?
    /// App groups; nil: all. A change of scope `team` is delivered if the team has one of them.
    package var apps: [String]?
    package var ordering: Ordering = .attempt
    /// The most requests of a daemon at the same time, 1 to 64.
    package var concurrency = 8
    /// For a whole request, 1 to 60 seconds.
    package var timeout: Duration = .seconds(15)
    /// The most requests of a daemon in a second; nil: no limit.
    package var rate: Double?
    /// The time before each further attempt of a delivery.
    package var retries = Self.usualRetries
    /// The endpoint is disabled after failing for this long; zero: never.
    package var disableAfter: Duration = .seconds(5 * 86_400)
    package var signature: Signature = .hmac
    /// `email`, or nothing.
    package var include: [String] = []
    package var audience: String?
    package var subject: String?
    package var revokedAs: String?
    /// Of the event format.
    package var version = 1

    package init(name: String, url: String?) {
        self.name = name
        self.url = url
    }

    /// 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h and 24 h, as Standard Webhooks recommends.
    package static let usualRetries: [Duration] = [
        5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400,
    ].map { .seconds($0) }
}

/// A row of `siwa.endpoints`.
package struct Endpoint: Sendable, Equatable {
    package enum Status: String, PostgresValue, Sendable, CaseIterable {
        case enabled
        /// By an operator.
        case paused
        /// By siwad.
        case disabled
    }

    package enum StatusReason: String, PostgresValue, Sendable, CaseIterable {
        case `operator`
        /// The receiver answered 410, or asked to be disabled.
        case gone
        /// No success for ``EndpointConfiguration/disableAfter``.
        case failing
    }

    package let id: Int32
    package var configuration: EndpointConfiguration
    package var status: Status
    /// nil if it is enabled.
    package var statusReason: StatusReason?
    package let statusAt: WallTime
    package let createdAt: WallTime
    /// Counts the changes of the row.
    package var revision: Int32

    package var name: String { configuration.name }

    package init(
        id: Int32,
        configuration: EndpointConfiguration,
        status: Status = .enabled,
        statusReason: StatusReason? = nil,
        statusAt: WallTime,
        createdAt: WallTime,
        revision: Int32 = 1
    ) {
        self.id = id
        self.configuration = configuration
        self.status = status
        self.statusReason = statusReason
        self.statusAt = statusAt
        self.createdAt = createdAt
        self.revision = revision
    }
}

/// The health of an endpoint as the daemons know it: a row of `siwa.endpoint_states`.
package struct EndpointState: Sendable, Equatable {
    /// Of the first failure since the last success.
    package var failingSince: WallTime?
    /// The circuit is open until then; nil: closed.
    package var openUntil: WallTime?
    /// The present time between two probes; nil: the circuit is closed.
    package var probeDelay: Duration?
    package var lastSuccessAt: WallTime?
    /// As `siwa.deliveries.reason`.
    package var lastReason: String?
    package var lastHTTPStatus: Int?
    /// The cause of the last failure in siwad's words.
    package var lastDetail: String?
    /// Of the latest failure that this daemon saw since its last success. It is no column: it is stored as ``failingSince`` if
    /// another daemon had a success after the first failure.
    package var lastFailedAt: WallTime?

    package init() {}

    package init(
        failingSince: WallTime?,
        openUntil: WallTime?,
        probeDelay: Duration?,
        lastSuccessAt: WallTime?,
        lastReason: String?,
        lastHTTPStatus: Int?,
        lastDetail: String?
    ) {
        self.failingSince = failingSince
        self.openUntil = openUntil
        self.probeDelay = probeDelay
        self.lastSuccessAt = lastSuccessAt
        self.lastReason = lastReason
        self.lastHTTPStatus = lastHTTPStatus
        self.lastDetail = lastDetail
    }
}
