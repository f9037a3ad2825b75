package import AccountStore
package import Postgres

/// Makes an endpoint get changes that were published before, in batches as ``DeliveryRun`` has.
package struct EndpointSeek: Sendable {
    /// Positions in one transaction.
    private static let batch = 1_000

    private let endpoint: Int32
    private let positions: ClosedRange<Int64>
    private let action: OperatorAction

    /// - Parameter action: its number of affected rows has no meaning.
    package init(_ endpoint: Int32, _ positions: ClosedRange<Int64>, as action: OperatorAction) {
        self.endpoint = endpoint
        self.positions = positions
        self.action = action
    }

    /// - Parameter onProgress: called after each transaction with its last position.
    /// - Returns: the number of deliveries that are due.
    /// - Throws: `PostgresError`, or `CancellationError`.
    package func carryOut(on pool: ConnectionPool, onProgress: (Int64) -> Void = { _ in }) async throws -> Int {
        var sum = 0
        var last = positions.lowerBound - 1
        while last < positions.upperBound {
            let (after, seek) = (last, self)
            let batch = try await pool.transaction { session throws(PostgresError) in
                try seek.batch(after: after, in: session)
            }
            guard let end = batch.position else { break }
            sum += batch.deliveries
            last = end
            onProgress(last)
            try Task.checkCancellation()
        }
        return sum
    }

    private func batch(
        after position: Int64,
        in transaction: borrowing Session
    ) throws(PostgresError) -> (deliveries: Int, position: Int64?) {
        let batch = try Endpoints.seek(
            endpoint,
            after: position,
            through: positions.upperBound,
            limit: Self.batch,
            in: transaction
        )
        if batch.deliveries > 0 {
            try OperatorActions.record(action.affecting(batch.deliveries), in: transaction)
        }
        return batch
    }
}
