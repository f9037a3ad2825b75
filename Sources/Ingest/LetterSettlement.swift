import AccountStore
import AppleTokens
import JOSE
import Postgres

/// Decides about the letters that were kept for want of a key, as soon as a key set decides about them.
///
/// A letter whose key has come is replayed. One that its key didn't sign, or whose key is not in a set that was fetched
/// after the letter came, is discarded: any sender can cause such letters, so they must not take the room of others until
/// an operator looks. Both are done and recorded as if an operator did them, under the name `siwad`. Of those that it
/// discarded the latest are kept, so that a flood doesn't fill the disk.
struct LetterSettlement {
    /// How the audit and the letters name the daemon.
    static let operatorName = "siwad"
    /// Letters looked at together: each may be as large as a body.
    private static let batch = 100
    /// Discarded letters that are kept.
    static let discardedLimit = 1_000

    private let intake: Intake
    private let pool: ConnectionPool
    private let trust: SigningKeys.Trust
    /// The letters that a set doesn't decide about.
    private var undecided: (setVersion: Int, ids: Set<Int64>) = (0, [])

    init(intake: Intake, pool: ConnectionPool, trust: SigningKeys.Trust) {
        self.intake = intake
        self.pool = pool
        self.trust = trust
    }

    /// How many letters a run replayed and discarded.
    struct Effects: Sendable, Equatable {
        var replayed = 0
        var discarded = 0

        var isNone: Bool { self == Effects() }
    }

    /// Settles what the set in force decides about. A letter about which it decides nothing is looked at once for a set.
    mutating func settle() async throws -> Effects {
        var effects = Effects()
        let set = intake.keys.keys
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
        // Kept keys verify what came while they were current, those that are fetched anything.
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
            policy: intake.policy,
            keys: keys,
            acceptsExpired: false,
            retention: intake.limits.retention,
            now: intake.now()
        )
        for letter in letters {
            switch judge.judge(letter) {
            case .verified(let received) where judge.isTooOld(received): sorted.undecided.append(letter.id)
            case .verified: sorted.signed.append(letter.id)
            case .refused(let rejection): sorted.refused[rejection, default: []].append(letter.id)
            case .dead(let found) where found.verifiedKeyID != nil: sorted.signed.append(letter.id)
            case .dead where Self.isKeyless(letter, set, intake.policy.leeway): sorted.keyless.append(letter.id)
            case .dead: sorted.undecided.append(letter.id)
            }
        }
    }

    /// Whether a set that was asked for after the letter came lacks its key.
    private static func isKeyless(_ letter: ClaimedDeadLetter, _ set: KeySet, _ leeway: Duration) -> Bool {
        // Another daemon may have received it, whose clock may be slow.
        guard let fetchedAt = set.fetchedAt, letter.receivedAt + leeway < fetchedAt else { return false }
        // What is no token names no key, and never will.
        let token = try? NotificationBody.token(in: letter.body)
        let jws = token.flatMap { try? CompactJWS(parsing: $0) }
        return jws?.keyID.map { set.lacks(kid: $0) } ?? true
    }

    private func replay(_ ids: [Int64], _ today: [JSONWebKey]) async throws -> Int {
        guard !ids.isEmpty else { return 0 }
        let replay = DeadLetterReplay(
            policy: intake.policy,
            trust: trust,
            retention: intake.limits.retention,
            fetchKeys: { today },
            now: intake.now
        )
        let note = "the key that it names has come"
        let run = ReplayRun(DeadLetterFilter(ids: ids), by: Self.operatorName, note: note)
        let report = try await pool.withConnection { connection in try await replay.run(run, on: connection) }
        return report?.replayed ?? 0
    }

    private func discard(_ ids: [Int64], _ note: String) async throws -> Int {
        guard !ids.isEmpty else { return 0 }
        let filter = DeadLetterFilter(ids: ids, reason: .keysUnavailable)
        // Not each id: a flood would fill the audit, from which nothing can be deleted.
        let target = DeadLetterFilter(reason: .keysUnavailable).text
        let decision = DeadLetterDecision(.discard, filter, by: Self.operatorName, note: note, target: target)
        return try await decision.carryOut(on: pool)?.changed ?? 0
    }
}
