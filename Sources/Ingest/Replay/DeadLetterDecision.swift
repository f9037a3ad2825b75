package import AccountStore
package import Postgres

/// An operator's decision about dead letters without processing them.
package struct DeadLetterDecision: Sendable {
    package enum Verb: String, Sendable, CaseIterable {
        /// Open letters are not processed; they stay on record.
        case discard
        /// Discarded letters are open again.
        case reopen

        package var status: DeadLetterStatus {
            switch self {
            case .discard: .open
            case .reopen: .discarded
            }
        }
    }

    package struct Report: Sendable, Equatable {
        package let selection: DeadLetterSelection
        package fileprivate(set) var changed = 0
        /// Discarded letters that stay so, because another letter with the same token is open.
        package fileprivate(set) var refused = 0
        /// The letters that other sessions changed since the selection, or had locked.
        package var leftAlone: Int { max(0, selection.total - changed - refused) }
    }

    /// Letters in one transaction, which records the operator's action too. The daemon waits for it if it receives one of
    /// the letters again.
    private static let batch = 2_000

    private let verb: Verb
    private let filter: DeadLetterFilter
    private let operatorName: String
    private let note: String
    private let target: String?
    private let rate: Double?

    /// - Parameters:
    ///   - target: the target in the audit; nil: the filter.
    ///   - rate: letters a second; nil: no limit.
    package init(
        _ verb: Verb,
        _ filter: DeadLetterFilter,
        by operatorName: String,
        note: String,
        target: String? = nil,
        rate: Double? = nil
    ) {
        self.verb = verb
        self.filter = filter
        self.operatorName = operatorName
        self.note = note
        self.target = target
        self.rate = rate
    }

    package func selection(on pool: ConnectionPool) async throws(PostgresError) -> DeadLetterSelection? {
        let (filter, status) = (filter, verb.status)
        return try await pool.withSession { session throws(PostgresError) in
            try DeadLetters.select(filter, status: status, in: session)
        }
    }

    /// Applies it to the letters that match now. Each transaction records the operator's action with the number of letters
    /// that it changed, so the audit is right even if the run is interrupted. Returns nil if no letter matched.
    ///
    /// - Parameter onProgress: called after each transaction.
    /// - Throws: `PostgresError`, or with a rate `CancellationError`.
    package func carryOut(on pool: ConnectionPool, onProgress: (Report) -> Void = { _ in }) async throws -> Report? {
        guard let selection = try await selection(on: pool) else { return nil }
        let start = ContinuousClock.now
        let limit = rate.map { Int(min(Double(Self.batch), max(1, $0))) } ?? Self.batch
        var report = Report(selection: selection)
        var last = selection.firstID - 1
        while last < selection.lastID {
            let (after, decision) = (last, self)
            let part = try await pool.transaction { session throws(PostgresError) in
                let part = try decision.part(after: after, through: selection.lastID, limit, in: session)
                if let end = part.lastID {
                    let action = decision.action(part.changed, on: after + 1...end, limit)
                    try OperatorActions.record(action, in: session)
                }
                return part
            }
            report.changed += part.changed
            report.refused += part.refused
            onProgress(report)
            guard let end = part.lastID, end < selection.lastID else { break }
            last = end
            if let rate {
                let done = Double(report.changed + report.refused)
                try await Task.sleep(until: start + .seconds(done / rate), clock: .continuous)
            }
        }
        return report
    }

    /// - Parameter ids: from the first letter of the batch through the last.
    private func action(_ affected: Int, on ids: ClosedRange<Int64>, _ limit: Int) -> OperatorAction {
        var filter = filter
        // The entry of each batch names only its own letters: the audit would grow with the square of a list of numbers.
        if filter.ids.count > limit { filter.ids.removeAll { !ids.contains($0) } }
        return OperatorAction(
            operatorName: operatorName,
            action: "dead-letters \(verb.rawValue)",
            target: target ?? filter.text,
            note: note,
            affected: affected
        )
    }

    private func part(
        after: Int64,
        through: Int64,
        _ limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> DeadLetterResolution {
        switch verb {
        case .discard:
            try DeadLetters.discard(
                filter,
                after: after,
                through: through,
                limit: limit,
                by: operatorName,
                note: note,
                in: session
            )
        case .reopen:
            try DeadLetters.reopen(filter, after: after, through: through, limit: limit, note: note, in: session)
        }
    }
}
