import AccountStore
import JOSE
import Postgres
import Webhooks

/// Every sealed secret that endpoints use, opened with the keys of the configuration. Refresh tokens are only counted,
/// because there is one for each person.
struct SealedSecrets: Sendable, Equatable {
    let keys: SealingKeys?
    /// False if the role of the session may not read secrets.
    private(set) var isReadable = true
    /// By the name of the key.
    private(set) var counts: [String: Int] = [:]
    private(set) var unopened = 0
    /// Where and why the first one can't be opened.
    private(set) var firstProblem: String?
    /// The ids of the endpoints with secrets that can't be opened.
    private var broken: Set<String> = []
    /// The names of the enabled ones of these endpoints. Daemons with the same keys send them nothing.
    private(set) var stoppedEndpoints: [String] = []

    var count: Int { counts.values.reduce(0, +) }

    /// False only if every secret was opened, and the first key seals them all.
    var mayNeedOldKeys: Bool {
        guard let keys, isReadable, unopened == 0 else { return true }
        return counts.keys.contains { $0 != keys.first }
    }

    init(readWith keys: SealingKeys?, in session: borrowing Session) throws(PostgresError) {
        self.keys = keys
        let column = SealedColumn.endpointSecrets
        guard try column.isReadable(in: session) else {
            isReadable = false
            return
        }
        counts = try column.counts(in: session)
        guard let keys else { return }
        var last: [String]?
        repeat {
            let rows = try column.rows(after: last, limit: 500, in: session)
            for row in rows { check(row, keys) }
            last = rows.last?.identity
        } while last != nil
        guard !broken.isEmpty else { return }
        stoppedEndpoints = try Endpoints.enabledNames(among: broken.sorted(), in: session)
    }

    private mutating func check(_ row: SealedRow, _ keys: SealingKeys) {
        do throws(WebhookError) {
            _ = try SealedSecret(row.identity).open(row.sealed, with: keys)
        } catch {
            unopened += 1
            let table = SealedColumn.endpointSecrets.rawValue
            firstProblem = firstProblem ?? "\(row.identity.joined(separator: "/")) of \(table): \(error)"
            if let id = row.identity.first { broken.insert(id) }
        }
    }
}

extension SealedSecret {
    /// - Parameter identity: the primary key of its row in `siwa.endpoint_secrets`.
    fileprivate init(_ identity: [String]) throws(WebhookError) {
        guard identity.count == 3, let endpoint = Int32(identity[0]),
            let purpose = SecretPurpose(rawValue: identity[1]),
            let generation = Int32(identity[2])
        else { throw WebhookError(.foreignSecret, "this siwad doesn't know its purpose") }
        self.init(endpoint: endpoint, purpose: purpose, generation: generation)
    }
}
