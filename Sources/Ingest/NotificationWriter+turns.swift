import AccountStore
import Postgres
import Synchronization
import Telemetry

/// The way of batches that follow on one another: each is sent while the one before it is being committed.
extension NotificationWriter {
    /// Batches that follow on one another keep the connection's thread at most so long: its deadline is for all of them.
    private static let turn = Duration.milliseconds(500)

    /// How far a turn came.
    struct Turn: Sendable {
        /// Those that are not known to be stored.
        var unsettled: [[Submission]]
        /// What was taken off the queue and needs more than the one statement.
        var others: [[Submission]] = []
        var error: PostgresError?
        /// When the oldest unsettled one was sent.
        var start = ContinuousClock.now

        /// Whether its batches may be stored one by one: what failed lies with one of them, or the connection had broken
        /// before.
        func isWorthAnother(_ error: PostgresError) -> Bool {
            if error.isConnectionError { return .now - start < NotificationWriter.promptly && !Task.isCancelled }
            return error.code == .server && (error.isDataError || error.maySpareOthers)
        }
    }

    /// Whether it takes no more than the one statement.
    func isPlain(_ batch: [Submission]) -> Bool {
        let isPlain = batch.allSatisfy { submission in
            guard case .notification = submission.work else { return false }
            return true
        }
        return isPlain && line.withLock { $0.partitions.missing(for: batch).isEmpty }
    }

    /// Stores a batch and what comes in after it, until something needs more than the one statement, fails, or the intake
    /// is closed. What comes next is waited for on the connection's own thread, where it goes: another thread in between
    /// costs a lone notification a tenth of this process's time for it.
    func storeInTurn(_ first: [Submission], on connection: isolated PostgresConnection) async -> Turn {
        var batch = first
        while true {
            var turn = await takeTurn(with: batch, on: connection)
            guard turn.error == nil, turn.unsettled.isEmpty, turn.others.isEmpty,
                let next = await intake.queue.next(atMost: intake.limits.batch)
            else { return turn }
            guard isPlain(next), line.withLock({ $0.connection === connection }) else {
                turn.others = [next]
                return turn
            }
            batch = next
        }
    }

    /// Stores a batch and what comes in until it is committed, and so on, for a while.
    private func takeTurn(with first: [Submission], on connection: isolated PostgresConnection) async -> Turn {
        do throws(PostgresError) {
            return try await connection.withSession { session throws(PostgresError) in
                var turn = Turn(unsettled: [first])
                var starts = [turn.start]
                let end = turn.start + Self.turn
                do throws(PostgresError) {
                    try Notifications.record(
                        pipelined: first.notifications,
                        next: {
                            guard .now < end, turn.others.isEmpty else { return nil }
                            let batch = intake.queue.waiting(atMost: intake.limits.batch)
                            guard !batch.isEmpty else { return nil }
                            guard isPlain(batch) else {
                                turn.others = [batch]
                                return nil
                            }
                            turn.unsettled.append(batch)
                            starts.append(.now)
                            return batch.notifications
                        },
                        source: .endpoint,
                        in: session,
                        durable: { recorded in
                            let batch = turn.unsettled.removeFirst()
                            stored(batch.settled(recorded), since: starts.removeFirst())
                        }
                    )
                } catch {
                    turn.error = error
                    turn.start = starts.first ?? .now
                }
                return turn
            }
        } catch {
            return Turn(unsettled: [first], error: error)
        }
    }

    /// Answers what is stored.
    private func stored(_ settled: [Settled], since start: ContinuousClock.Instant) {
        line.withLock { $0.noteStored(settled) }
        answer(settled.map { ($0.submission, $0.answer) })
        intake.measure(settled, from: .endpoint, since: start)
    }
}

extension [Submission] {
    /// The notifications in it.
    fileprivate var notifications: [ReceivedNotification] {
        compactMap { submission in
            guard case .notification(let received) = submission.work else { return nil }
            return received
        }
    }

    /// Its notifications, each with what it did.
    fileprivate func settled(_ recorded: [RecordedNotification]) -> [Settled] {
        zip(self, recorded).compactMap { submission, recorded in
            guard case .notification(let received) = submission.work else { return nil }
            return Settled(submission: submission, answer: .acknowledged, effect: .recorded(received, recorded))
        }
    }
}
