import AccountStore
import AppleTokens
import Postgres
import Telemetry

/// Live traffic: from the queue into the database.
extension NotificationWriter {
    /// A connection that breaks within this time was broken before, so that another attempt costs little time.
    private static let promptly = Duration.seconds(1)
    /// Pipelined batches occupy the connection's thread at most so long: its deadline is for all of them.
    private static let pipelineTime = Duration.milliseconds(500)

    /// Stores a batch, and the batches that follow while it commits. All of them are answered when this returns.
    func store(_ batch: [Submission], with committer: inout Committer) async {
        guard let connection = service.queue.writer({ $0.connection }) else { return await spool(batch) }
        var rest = [batch]
        if committer.isPlain(batch) {
            let committer = committer
            let pipeline = await connection.onThread { await storePipelined(batch, committer, on: connection) }
            rest = pipeline.unsettled + pipeline.others
            if let error = pipeline.error, !pipeline.isWorthRetrying(error) {
                return await giveUp(connection, error, rest)
            }
        }
        for batch in rest.map(answerDurable) where !batch.isEmpty {
            if let connection = service.queue.writer({ $0.connection }) {
                await storeAlone(batch, with: &committer, on: connection)
            } else {
                await spool(batch)
            }
        }
    }

    // MARK: - Pipelined batches

    private struct Pipeline: Sendable {
        /// Batches whose outcome is unknown.
        var unsettled: [[Submission]]
        /// Batches that were taken off the queue and need more than the one statement.
        var others: [[Submission]] = []
        var error: PostgresError?
        /// When the oldest unsettled batch was sent.
        var start = ContinuousClock.now

        /// Whether its batches may be stored one by one: one of them is the cause, or the connection had broken before.
        func isWorthRetrying(_ error: PostgresError) -> Bool {
            if error.isConnectionError { return .now - start < NotificationWriter.promptly && !Task.isCancelled }
            return error.code == .server && (error.isDataError || error.maySpareOthers)
        }
    }

    /// Stores a batch and the ones after it, until one needs more than the one statement, one fails, or the queue is closed.
    /// The next batch is waited for on the connection's own thread: switching to another one would cost a single
    /// notification a tenth of its processing time.
    private func storePipelined(
        _ first: [Submission],
        _ committer: Committer,
        on connection: isolated PostgresConnection
    ) async -> Pipeline {
        var batch = first
        while true {
            var pipeline = await runPipeline(batch, committer, on: connection)
            guard pipeline.error == nil, pipeline.unsettled.isEmpty, pipeline.others.isEmpty,
                let next = await service.queue.next(atMost: service.limits.batch)
            else { return pipeline }
            guard committer.isPlain(next), service.queue.writer({ $0.connection }) === connection else {
                pipeline.others = [next]
                return pipeline
            }
            batch = next
        }
    }

    /// Sends a batch, and the next one while it commits, and so on for a limited time.
    private func runPipeline(
        _ first: [Submission],
        _ committer: Committer,
        on connection: isolated PostgresConnection
    ) async -> Pipeline {
        do throws(PostgresError) {
            return try await connection.withSession { session throws(PostgresError) in
                var pipeline = Pipeline(unsettled: [first])
                var starts = [pipeline.start]
                let end = pipeline.start + Self.pipelineTime
                do throws(PostgresError) {
                    try Notifications.record(
                        pipelined: first.notifications,
                        next: {
                            guard .now < end, pipeline.others.isEmpty else { return nil }
                            let batch = service.queue.waiting(atMost: service.limits.batch)
                            guard !batch.isEmpty else { return nil }
                            guard committer.isPlain(batch) else {
                                pipeline.others = [batch]
                                return nil
                            }
                            pipeline.unsettled.append(batch)
                            starts.append(.now)
                            return batch.notifications
                        },
                        source: .endpoint,
                        in: session,
                        durable: { recorded in
                            let batch = pipeline.unsettled.removeFirst()
                            settle(batch.settled(recorded), on: connection, since: starts.removeFirst())
                        }
                    )
                } catch {
                    pipeline.error = error
                    pipeline.start = starts.first ?? .now
                }
                return pipeline
            }
        } catch {
            return Pipeline(unsettled: [first], error: error)
        }
    }

    // MARK: - A batch by itself

    private func storeAlone(
        _ batch: [Submission],
        with committer: inout Committer,
        on connection: PostgresConnection
    ) async {
        let start = ContinuousClock.now
        guard let error = await attempt(batch, with: &committer, on: connection) else { return }
        if error.isConnectionError, .now - start < Self.promptly, !Task.isCancelled {
            // A server that was restarted, or that ended an idle connection, usually accepts another one immediately. The
            // batch is idempotent, even if it was committed.
            reports.connectionBroke(error)
            await storeAgain(batch, with: &committer, replacing: connection)
        } else if error.code == .server, error.maySpareOthers {
            await storeParts(of: batch, after: error, with: &committer, on: connection)
        } else {
            await giveUp(connection, error, [batch])
        }
    }

    /// Stores the notifications that PostgreSQL accepts. The others go to the spool, or are answered 503 if there is none.
    private func storeParts(
        of batch: [Submission],
        after error: PostgresError,
        with committer: inout Committer,
        on connection: PostgresConnection
    ) async {
        var current = committer
        let bisection = await Bisection(batch, after: error) { part in
            await attempt(part, with: &current, on: connection)
        }
        committer = current
        func submissions(_ positions: Set<Int>) -> [Submission] { positions.sorted().map { batch[$0] } }
        if let failure = bisection.failure {
            return await giveUp(connection, failure, [submissions(bisection.refused.union(bisection.untried))])
        }
        guard let refusal = bisection.refusal else { return }
        let refused = submissions(bisection.refused)
        switch apply({ $0.notificationsRefused(on: connection, stored: bisection.stored, of: batch.count) }) {
        case .giveUpConnection:
            await giveUp(connection, refusal, [refused])
        case .keepConnection:
            reports.refused(refused.count, refusal)
            await spool(refused)
            wakeup.signal()
        }
    }

    /// Stores a batch in one transaction and answers it.
    ///
    /// - Returns: nil, or the error.
    private func attempt(
        _ batch: [Submission],
        with committer: inout Committer,
        on connection: PostgresConnection
    ) async -> PostgresError? {
        let start = ContinuousClock.now
        do throws(PostgresError) {
            settle(try await committer.commit(batch, on: connection), on: connection, since: start)
            return nil
        } catch {
            return error
        }
    }

    private func storeAgain(
        _ batch: [Submission],
        with committer: inout Committer,
        replacing broken: PostgresConnection
    ) async {
        do {
            let fresh = try await openConnection(within: Self.promptly)
            await broken.close()
            apply { $0.connectionReplaced(broken, by: fresh) }
            if let error = await attempt(batch, with: &committer, on: fresh) { await giveUp(fresh, error, [batch]) }
            // Another connection may have come into use before.
            if service.queue.writer({ $0.connection }) !== fresh { await fresh.close() }
        } catch {
            await giveUp(broken, error, [batch])
        }
    }

    /// Spools what could not be stored, and then gives the connection up: the next one has to store that first.
    private func giveUp(_ connection: PostgresConnection, _ error: any Error, _ batches: [[Submission]]) async {
        for batch in batches { await spool(batch) }
        await lost(connection, error)
    }

    // MARK: - After the commit

    /// Answers and counts what is durable.
    ///
    /// - Parameter connection: the connection for live traffic that it was stored on; nil for what comes from the spool.
    func settle(_ settled: [Settled], on connection: PostgresConnection?, since start: ContinuousClock.Instant) {
        if let connection { apply { $0.batchStored(on: connection) } }
        // Before the response: a client that repeats a token after it causes no write.
        for case .letterKept(let received, _) in settled.map(\.effect) {
            service.durable.insert(received.tokenDigest, as: received.share)
        }
        service.queue.finished(settled.map { ($0.submission, $0.response) }).deliver()
        reports.rejected(settled)
        measure(settled, isLive: connection != nil, since: start)
    }

    private func measure(_ settled: [Settled], isLive: Bool, since start: ContinuousClock.Instant) {
        let metrics = service.metrics
        let now = service.now()
        metrics.commitDuration.record(.now - start)
        metrics.batchSize.record(settled.count)
        for settled in settled {
            switch settled.effect {
            case .recorded(let received, let recorded):
                let event = received.notification.event
                metrics.notifications.increment(event.kind.rawValue, recorded.outcome.rawValue)
                metrics.eventLag.record(now.duration(since: event.time))
                // What comes from the spool was received before others that are stored already.
                metrics.lastNotification.gauge(received.notification.app.rawValue).raise(
                    to: received.receivedAt.seconds
                )
                if recorded.sessionsEnded > 0 {
                    metrics.sessionsEnded.increment(event.kind.endReason, by: recorded.sessionsEnded)
                }
            case .letterKept(let letter, let isNew):
                // What came as a notification reserved nothing, nor did what comes from the spool.
                guard isLive, case .deadLetter = settled.submission.work else { continue }
                if isNew {
                    service.budget.kept(letter.letter.reason)
                } else {
                    service.budget.release(letter.letter.reason)
                }
            }
        }
    }

    /// Delivers the responses of submissions that have none yet.
    ///
    /// - Parameter isEarly: the writer still works on them; otherwise they are finished.
    func answer(_ responses: [(Submission, IngestResponse)], isEarly: Bool = false) {
        (isEarly ? service.queue.answeredEarly(responses) : service.queue.finished(responses)).deliver()
    }

    /// Answers 503, and releases reservations.
    ///
    /// - Parameters:
    ///   - response: nil: nothing can be stored at present.
    ///   - isEarly: the writer works on the batch at the same time, and releases the reservations.
    func answerUnavailable(_ batch: [Submission], _ response: IngestResponse? = nil, isEarly: Bool = false) {
        if !isEarly { releaseReservations(of: batch) }
        let reason = service.isClosed ? Unavailability.shuttingDown : .databaseUnavailable
        let response = response ?? .unavailable(reason, retryAfterSeconds: 5)
        answer(batch.map { ($0, response) }, isEarly: isEarly)
    }

    func releaseReservations(of batch: [Submission]) {
        for case .deadLetter(let received, _) in batch.map(\.work) { service.budget.release(received.letter.reason) }
    }
}

extension [Submission] {
    /// Its notifications, each with what it did. All of them are notifications.
    fileprivate func settled(_ recorded: [RecordedNotification]) -> [Settled] {
        zip(self, recorded).compactMap { submission, recorded in
            guard case .notification(let received) = submission.work else { return nil }
            return Settled(submission: submission, response: .acknowledged, effect: .recorded(received, recorded))
        }
    }
}

extension AccountEvent.Kind {
    /// The `reason` label of the sessions that an event of this kind ended.
    fileprivate var endReason: String {
        switch self {
        case .accountDeleted: "account-deleted"
        case .consentRevoked, .emailDisabled, .emailEnabled: "consent-revoked"
        }
    }
}
