package import AccountStore
package import Postgres

/// An operator's decision about deliveries, in batches. Each batch is one transaction with its own row in the audit, so a run
/// that ended halfway can be repeated, and continues with what is left.
package struct DeliveryRun: Sendable {
    package struct Report: Sendable, Equatable {
        package let selection: DeliverySelection
        package fileprivate(set) var changed = 0
        /// The deliveries that were changed or claimed by others since the selection.
        package var leftAlone: Int { max(0, selection.total - changed) }
    }

    private static let batch = 500

    private let verb: DeliveryVerb
    private let filter: DeliveryFilter
    /// What the audit records for each batch, without the number.
    private let action: OperatorAction
    private let rate: Double?

    /// - Parameters:
    ///   - action: its number of affected rows has no meaning.
    ///   - rate: deliveries a second; nil: no limit.
    package init(_ verb: DeliveryVerb, _ filter: DeliveryFilter, as action: OperatorAction, rate: Double? = nil) {
        self.verb = verb
        self.filter = filter
        self.action = action
        self.rate = rate
    }

    package func selection(on pool: ConnectionPool) async throws(PostgresError) -> DeliverySelection? {
        let filter = filter
        return try await pool.withSession { session throws(PostgresError) in
            try DeliveryDecisions.select(filter, in: session)
        }
    }

    /// Decides about the deliveries that match now. Returns nil if none does.
    ///
    /// - Parameter onProgress: called after each transaction.
    /// - Throws: `PostgresError`, or `CancellationError`.
    package func carryOut(on pool: ConnectionPool, onProgress: (Report) -> Void = { _ in }) async throws -> Report? {
        guard let selection = try await selection(on: pool) else { return nil }
        let start = ContinuousClock.now
        let limit = rate.map { Int(min(Double(Self.batch), max(1, $0))) } ?? Self.batch
        var report = Report(selection: selection)
        var last = DeliveryKey(endpoint: 0, position: 0)
        while true {
            let (after, run) = (last, self)
            let batch = try await pool.transaction { session throws(PostgresError) in
                try run.batch(after: after, through: selection.last, limit, in: session)
            }
            report.changed += batch.ids.count
            onProgress(report)
            guard let end = batch.last, end != selection.last else { return report }
            last = end
            if let rate {
                try await Task.sleep(until: start + .seconds(Double(report.changed) / rate), clock: .continuous)
            } else {
                try Task.checkCancellation()
            }
        }
    }

    private func batch(
        after: DeliveryKey,
        through: DeliveryKey,
        _ limit: Int,
        in transaction: borrowing Session
    ) throws(PostgresError) -> DeliveryDecisions.Batch {
        let batch = try DeliveryDecisions.decide(
            verb,
            filter,
            after: after,
            through: through,
            limit: limit,
            by: action.operatorName,
            note: action.note ?? "",
            in: transaction
        )
        guard !batch.ids.isEmpty else { return batch }
        var part = filter
        part.ids = batch.ids
        // The entry of each batch names only its own deliveries: the audit would grow with the square of a list of ids.
        let target = filter.ids.count > limit ? part.text : nil
        try OperatorActions.record(action.affecting(batch.ids.count, target: target), in: transaction)
        return batch
    }
}
