import AccountStore
import AppleTokens
import Basics
import JOSE
import Postgres
import Spool
import Telemetry

/// Counts the open dead letters. Replays or discards the ones that were kept because their key was not known, as soon as a key
/// set allows it.
///
/// A letter whose key has come is replayed. A letter is discarded if its key did not sign it, or if a set that was fetched
/// after it was received lacks its key: any client can cause such letters, so they must not take the room of others until an
/// operator acts. Both are recorded as an operator's actions, under the name `siwad`. Only the latest discarded letters are
/// kept, so that a flood does not fill the disk.
struct LetterSettlement: Sendable {
    /// The daemon's name in the audit and in the letters.
    static let operatorName = "siwad"
    /// Letters in memory together: each may be as large as a body.
    private static let batch = 100
    static let discardedLimit = 1_000

    let service: IngestService
    let pool: ConnectionPool
    let trust: SigningKeys.Trust
    var interval = Duration.seconds(5)
    /// The letters that the set of this version does not decide about.
    var undecided: (setVersion: Int, ids: Set<Int64>) = (0, [])

    struct Effects: Sendable, Equatable {
        var replayed = 0
        var discarded = 0
        /// Why letters whose key has come can't be replayed at present.
        var obstacle: String?
    }

    /// Works regularly, and whenever another key set is in force, until it is cancelled.
    mutating func run() async {
        let faults = FaultLog(service.log)
        while !Task.isCancelled {
            if let open = await count(faults), open[.keysUnavailable, default: 0] > 0, service.storage == .database {
                do {
                    let effects = try await settle()
                    if let obstacle = effects.obstacle {
                        if faults.isDue(.settlement, obstacle) {
                            service.log.warning(
                                "letters whose key has come can't be replayed; trying again",
                                ["cause": obstacle]
                            )
                        }
                    } else {
                        _ = faults.ended(.settlement)
                    }
                    if effects.replayed + effects.discarded > 0 {
                        service.log.notice(
                            "letters that were kept because their key was not known were settled",
                            ["replayed": "\(effects.replayed)", "discarded": "\(effects.discarded)"]
                        )
                        // There is room again.
                        _ = await count(faults)
                    }
                } catch {
                    // Some letters may be settled already.
                    service.durable.forget(.unverified)
                    guard !Task.isCancelled else { return }
                    faults.warning(
                        .settlement,
                        "letters that were kept because their key was not known could not be settled; trying again",
                        error
                    )
                }
            }
            await service.keys.replacement.wait(atMost: interval)
        }
    }

    /// - Returns: nil if the count failed.
    private func count(_ faults: FaultLog) async -> [DeadLetterReason: Int]? {
        if service.spool.map({ !$0.holds(.waiting) }) ?? true { service.budget.spoolEmptied() }
        service.budget.countingBegan()
        let open: [DeadLetterReason: Int]
        do throws(PostgresError) {
            open = try await pool.withSession { session throws(PostgresError) in
                try DeadLetters.countOpen(in: session)
            }
        } catch {
            // The writer reports that PostgreSQL is away.
            if !error.isServerAway, error.code != .cancelled {
                faults.warning(.letterCount, "open dead letters can't be counted; trying again", error)
            }
            return nil
        }
        service.budget.counted(open)
        // Another daemon or an operator may have settled any of them since the last count.
        service.durable.forget(.unverified)
        for reason in DeadLetterReason.allCases {
            service.metrics.deadLetters.gauge(reason.rawValue).set(open[reason, default: 0])
        }
        return open
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
        var conclusions: [Conclusion: [Int64]] = [:]
        for start in stride(from: 0, to: open.count, by: Self.batch) {
            let some = Array(open[start..<min(start + Self.batch, open.count)])
            conclusions.merge(try await judge(some, by: set, keys), uniquingKeysWith: +)
        }
        undecided.ids.formUnion(conclusions[.undecided, default: []])
        // First: a replay may fail for as long as PostgreSQL can't store one of the letters.
        for case (.discard(let note), let ids) in conclusions { effects.discarded += try await discard(ids, note) }
        if effects.discarded > 0 {
            try await pool.withSession { session throws(PostgresError) in
                try DeadLetters.deleteUnverified(
                    discardedBy: Self.operatorName,
                    sparing: Self.discardedLimit,
                    in: session
                )
            }
        }
        if let ids = conclusions[.replay], let report = try await replay(ids, today) {
            effects.replayed = report.replayed
            // Any other attempt gives a letter another reason.
            effects.obstacle = report.details.first { $0.key.reason == .keysUnavailable }?.value
        }
        return effects
    }

    // MARK: - Private parts

    private enum Conclusion: Hashable {
        case replay
        /// With the reason that is recorded with the action.
        case discard(note: String)
        case undecided
    }

    private func judge(_ ids: [Int64], by set: KeySet, _ keys: ReplayKeys) async throws -> [Conclusion: [Int64]] {
        let letters = try await pool.withSession { session throws(PostgresError) in
            try DeadLetters.open(ids: ids, in: session)
        }
        let now = service.now()
        let judge = ReplayJudge(
            verifier: NotificationVerifier(policy: service.policy),
            keys: keys,
            acceptsExpired: false,
            horizon: now - service.limits.retention,
            now: now
        )
        let concluded = Dictionary(grouping: letters) { letter -> Conclusion in
            switch judge.judge(letter) {
            case .verified: return .replay
            case .dead(let found) where found.verifiedKeyID != nil: return .replay
            case .refused(.badSignature): return .discard(note: "the key that it names did not sign it")
            case .refused(let rejection): return .discard(note: rejection.title)
            case .dead where isKeyless(letter, set):
                let asOf = set.fetchedAt.map { " of \($0)" } ?? ""
                return .discard(note: "Apple's key set\(asOf) lacks the key that it names")
            case .dead, .tooOld: return .undecided
            }
        }
        return concluded.mapValues { $0.map(\.id) }
    }

    /// Whether a set that was fetched after the letter was received lacks its key.
    private func isKeyless(_ letter: ClaimedDeadLetter, _ set: KeySet) -> Bool {
        // Another daemon may have received it, whose clock may be slow.
        guard let fetchedAt = set.fetchedAt, letter.receivedAt + service.policy.leeway < fetchedAt else { return false }
        // A body without a token names no key.
        let token = try? NotificationBody.token(in: letter.body)
        let jws = token.flatMap { try? CompactJWS(parsing: $0) }
        return jws?.keyID.map { set.lacks(kid: $0) } ?? true
    }

    private func replay(_ ids: [Int64], _ today: [JSONWebKey]) async throws -> ReplayReport? {
        let replay = DeadLetterReplay(
            policy: service.policy,
            trust: trust,
            retention: service.limits.retention,
            fetchKeys: { today },
            now: service.now
        )
        let filter = DeadLetterFilter(ids: ids)
        let run = ReplayRun(filter, by: Self.operatorName, note: "the key that it names has come")
        return try await pool.withConnection { connection in try await replay.run(run, on: connection) }
    }

    private func discard(_ ids: [Int64], _ note: String) async throws -> Int {
        let filter = DeadLetterFilter(ids: ids, reason: .keysUnavailable)
        // Not each id: a flood would fill the audit, which is never deleted.
        let target = DeadLetterFilter(reason: .keysUnavailable).text
        let decision = DeadLetterDecision(.discard, filter, by: Self.operatorName, note: note, target: target)
        return try await decision.carryOut(on: pool)?.changed ?? 0
    }
}
