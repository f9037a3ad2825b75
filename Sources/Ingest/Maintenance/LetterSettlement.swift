import AccountStore
import AppleTokens
import JOSE
import Postgres

/// Replays or discards the letters that were kept because their key was not known, as soon as a key set allows it.
///
/// A letter whose key has come is replayed. A letter is discarded if its key did not sign it, or if a set that was fetched
/// after it was received lacks its key: any client can cause such letters, so they must not take the room of others until an
/// operator acts. Both are recorded as an operator's actions, under the name `siwad`. Only the latest discarded letters are
/// kept, so that a flood does not fill the disk.
struct LetterSettlement {
    /// The daemon's name in the audit and in the letters.
    static let operatorName = "siwad"
    /// Letters in memory together: each may be as large as a body.
    private static let batch = 100
    /// Discarded letters that are kept.
    static let discardedLimit = 1_000

    private let service: IngestService
    private let pool: ConnectionPool
    private let trust: SigningKeys.Trust
    /// The letters that the set of this version does not decide about.
    private var undecided: (setVersion: Int, ids: Set<Int64>) = (0, [])

    init(service: IngestService, pool: ConnectionPool, trust: SigningKeys.Trust) {
        self.service = service
        self.pool = pool
        self.trust = trust
    }

    struct Effects: Sendable, Equatable {
        var replayed = 0
        var discarded = 0

        var isNone: Bool { self == Effects() }
    }

    /// Settles what the set in force decides about. A letter that it does not decide about is checked once for each set.
    mutating func settle() async throws -> Effects {
        var effects = Effects()
        let set = service.keys.keys
        guard !set.isEmpty else { return effects }
        if undecided.setVersion != set.version { undecided = (set.version, []) }
        let ids = try await pool.withSession { session throws(PostgresError) in
            try DeadLetters.unverified(in: session)
        }
        let open = ids.filter { !undecided.ids.contains($0) }
        guard !open.isEmpty else { return effects }
        let trust = trust
        let kept = try await pool.withSession { session throws(PostgresError) in
            try SigningKeys.all(trust, in: session)
        }
        // Stored keys verify what was received while they were current; fetched keys verify everything.
        let today = set.fetchedAt == nil ? [] : set.keys
        let keys = ReplayKeys(today: today, kept: kept, problem: nil)
        var sorted = Sorted()
        for start in stride(from: 0, to: open.count, by: Self.batch) {
            let some = Array(open[start..<min(start + Self.batch, open.count)])
            try await sort(some, by: set, keys, into: &sorted)
        }
        undecided.ids.formUnion(sorted.undecided)
        effects.replayed = try await replay(sorted.signed, today)
        for (rejection, ids) in sorted.refused {
            let isForged = rejection == .badSignature
            effects.discarded += try await discard(
                ids,
                isForged ? "the key that it names did not sign it" : rejection.title
            )
        }
        let asOf = set.fetchedAt.map { " of \($0)" } ?? ""
        effects.discarded += try await discard(sorted.keyless, "Apple's key set\(asOf) lacks the key that it names")
        if effects.discarded > 0 {
            try await pool.withSession { session throws(PostgresError) in
                try DeadLetters.deleteUnverified(
                    discardedBy: Self.operatorName,
                    sparing: Self.discardedLimit,
                    in: session
                )
            }
        }
        return effects
    }

    // MARK: - Private parts

    private struct Sorted {
        var signed: [Int64] = []
        var refused: [Rejection: [Int64]] = [:]
        var keyless: [Int64] = []
        var undecided: [Int64] = []
    }

    private func sort(
        _ ids: [Int64],
        by set: KeySet,
        _ keys: ReplayKeys,
        into sorted: inout Sorted
    ) async throws {
        let letters = try await pool.withSession { session throws(PostgresError) in
            try DeadLetters.open(ids: ids, in: session)
        }
        let judge = ReplayJudge(
            policy: service.policy,
            keys: keys,
            acceptsExpired: false,
            retention: service.limits.retention,
            now: service.now()
        )
        for letter in letters {
            switch judge.judge(letter) {
            case .verified(let received) where judge.isTooOld(received): sorted.undecided.append(letter.id)
            case .verified: sorted.signed.append(letter.id)
            case .refused(let rejection): sorted.refused[rejection, default: []].append(letter.id)
            case .dead(let found) where found.verifiedKeyID != nil: sorted.signed.append(letter.id)
            case .dead where Self.isKeyless(letter, set, service.policy.leeway): sorted.keyless.append(letter.id)
            case .dead: sorted.undecided.append(letter.id)
            }
        }
    }

    /// Whether a set that was fetched after the letter was received lacks its key.
    private static func isKeyless(_ letter: ClaimedDeadLetter, _ set: KeySet, _ leeway: Duration) -> Bool {
        // Another daemon may have received it, whose clock may be slow.
        guard let fetchedAt = set.fetchedAt, letter.receivedAt + leeway < fetchedAt else { return false }
        // A body without a token names no key.
        let token = try? NotificationBody.token(in: letter.body)
        let jws = token.flatMap { try? CompactJWS(parsing: $0) }
        return jws?.keyID.map { set.lacks(kid: $0) } ?? true
    }

    private func replay(_ ids: [Int64], _ today: [JSONWebKey]) async throws -> Int {
        guard !ids.isEmpty else { return 0 }
        let replay = DeadLetterReplay(
            policy: service.policy,
            trust: trust,
            retention: service.limits.retention,
            fetchKeys: { today },
            now: service.now
        )
        let note = "the key that it names has come"
        let run = ReplayRun(DeadLetterFilter(ids: ids), by: Self.operatorName, note: note)
        let report = try await pool.withConnection { connection in try await replay.run(run, on: connection) }
        return report?.replayed ?? 0
    }

    private func discard(_ ids: [Int64], _ note: String) async throws -> Int {
        guard !ids.isEmpty else { return 0 }
        let filter = DeadLetterFilter(ids: ids, reason: .keysUnavailable)
        // Not each id: a flood would fill the audit, which is never deleted.
        let target = DeadLetterFilter(reason: .keysUnavailable).text
        let decision = DeadLetterDecision(.discard, filter, by: Self.operatorName, note: note, target: target)
        return try await decision.carryOut(on: pool)?.changed ?? 0
    }
}
