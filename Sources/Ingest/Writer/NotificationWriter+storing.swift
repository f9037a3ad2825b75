import AccountStore
import AppleTokens
import Basics
import Postgres
import Telemetry

/// Live traffic: from the queue into the database.
extension NotificationWriter {
    /// A connection that breaks within this time was broken before, so that another attempt costs little time.
    private static let promptly = Duration.seconds(1)
    /// Pipelined batches occupy the connection's thread at most so long: its deadline is for all of them.
    private static let pipelineTime = Duration.milliseconds(500)

    /// Stores a batch, and the batches that follow while it commits. All of them are answered when this returns.
    func store(_ batch: [Submission]) async {
        guard let connection = service.queue.writer({ $0.connection }) else { return await spool(batch) }
        var rest = [batch]
        if committer.isPlain(batch) {
            let pipeline = await connection.onThread { await storePipelined(batch, on: connection) }
            rest = pipeline.rest
            if let error = pipeline.error, !pipeline.isWorthRetrying(error) {
                return await giveUp(connection, error, rest)
            }
        }
        for batch in rest.map(answerDurable) where !batch.isEmpty {
            if let connection = service.queue.writer({ $0.connection }) {
                await storeAlone(batch, on: connection)
            } else {
                await spool(batch)
            }
        }
    }

    // MARK: - Pipelined batches

    private struct Pipeline: Sendable {
        /// Batches whose outcome is unknown, and one that was not sent if it needs more than the one statement.
        var rest: [[Submission]]
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
    private func storePipelined(_ first: [Submission], on connection: isolated PostgresConnection) async -> Pipeline {
        var batch = first
        while true {
            var pipeline = await runPipeline(batch, on: connection)
            guard pipeline.error == nil, pipeline.rest.isEmpty,
                let next = await service.queue.next(atMost: service.limits.batch)
            else { return pipeline }
            guard committer.isPlain(next), service.queue.writer({ $0.connection }) === connection else {
                pipeline.rest = [next]
                return pipeline
            }
            batch = next
        }
    }

    /// Sends a batch, and the next one while it commits, and so on for a limited time.
    private func runPipeline(_ first: [Submission], on connection: isolated PostgresConnection) async -> Pipeline {
        do throws(PostgresError) {
            return try await connection.withSession { session throws(PostgresError) in
                var pipeline = Pipeline(rest: [first])
                var starts = [pipeline.start]
                let end = pipeline.start + Self.pipelineTime
                do throws(PostgresError) {
                    try Notifications.record(
                        pipelined: first.notifications,
                        next: {
                            guard .now < end, pipeline.rest.count == starts.count else { return nil }
                            let batch = service.queue.waiting(atMost: service.limits.batch)
                            guard !batch.isEmpty else { return nil }
                            pipeline.rest.append(batch)
                            guard committer.isPlain(batch) else { return nil }
                            starts.append(.now)
                            return batch.notifications
                        },
                        source: .endpoint,
                        in: session,
                        durable: { recorded in
                            // A plain batch: all of them are notifications.
                            let batch = pipeline.rest.removeFirst()
                            let settled = zip(zip(batch, batch.notifications), recorded).map { item, recorded in
                                Settled(submission: item.0, effect: .recorded(item.1, recorded))
                            }
                            settle(settled, from: .endpoint, on: connection, since: starts.removeFirst())
                        }
                    )
                } catch {
                    pipeline.error = error
                    pipeline.start = starts.first ?? .now
                }
                return pipeline
            }
        } catch {
            return Pipeline(rest: [first], error: error)
        }
    }

    // MARK: - A batch by itself

    private func storeAlone(_ batch: [Submission], on connection: PostgresConnection) async {
        let start = ContinuousClock.now
        guard let error = await attempt(batch, with: committer, on: connection) else { return }
        if error.isConnectionError, .now - start < Self.promptly, !Task.isCancelled {
            // A server that was restarted, or that ended an idle connection, usually accepts another one immediately. The
            // batch is idempotent, even if it was committed.
            service.log.warning("the connection to PostgreSQL broke; connecting again", ["error": "\(error)"])
            await storeAgain(batch, replacing: connection)
        } else if error.code == .server, error.maySpareOthers {
            await storeParts(of: batch, after: error, on: connection)
        } else {
            await giveUp(connection, error, [batch])
        }
    }

    /// Stores the notifications that PostgreSQL accepts. The others go to the spool, or are answered 503 if there is none.
    private func storeParts(
        of batch: [Submission],
        after error: PostgresError,
        on connection: PostgresConnection
    ) async {
        let bisection = await Bisection(batch, after: error) { await attempt($0, with: committer, on: connection) }
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
            if faults.isDue(.refusal, "\(refusal)") {
                let consequence = service.spool == nil ? "is answered 503" : "waits in the spool"
                service.log.error(
                    "PostgreSQL refuses a notification, or another session's lock delays it; it \(consequence)",
                    ["count": "\(refused.count)", "error": refusal.advised]
                )
            }
            await spool(refused)
            wakeup.signal()
        }
    }

    /// Stores a batch in one transaction and answers it, or returns the error.
    func attempt(
        _ batch: [Submission],
        with committer: Committer,
        on connection: PostgresConnection
    ) async -> PostgresError? {
        let start = ContinuousClock.now
        do throws(PostgresError) {
            let settled = try await committer.commit(batch, on: connection)
            settle(settled, from: committer.source, on: connection, since: start)
            return nil
        } catch {
            return error
        }
    }

    private func storeAgain(_ batch: [Submission], replacing broken: PostgresConnection) async {
        do {
            let fresh = try await openConnection(within: Self.promptly)
            await broken.close()
            service.durable.forgetAll()
            apply { $0.connectionReplaced(broken, by: fresh) }
            if let error = await attempt(batch, with: committer, on: fresh) { await giveUp(fresh, error, [batch]) }
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

    func settle(
        _ settled: [Settled],
        from source: NotificationSource,
        on connection: PostgresConnection,
        since start: ContinuousClock.Instant
    ) {
        let isLive = source == .endpoint
        // Before the response: a client that repeats a token after it causes no write.
        for case .letterKept(let received, _) in settled.map(\.effect) {
            service.durable.insert(received.tokenDigest, as: received.share)
        }
        let responses = settled.map { ($0.submission, $0.submission.work.responseWhenDurable) }
        ResponseSink.deliver(service.queue.finished(responses, on: isLive ? connection : nil))
        if settled.contains(where: \.hasChanged) { service.changes.signal() }
        stored()
        service.events.settled(settled)
        logRejections(in: settled)
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
            case .letterKept(let letter, let id):
                // What came as a notification reserved nothing.
                guard case .deadLetter = settled.submission.work else { continue }
                if !isLive {
                    service.budget.drained(letter.letter.reason)
                } else if id != nil {
                    service.budget.kept(letter.letter.reason)
                } else {
                    service.budget.release(letter.letter.reason)
                }
            }
        }
    }

    /// Notifications that PostgreSQL refused because of their data are not tried again until an operator replays them.
    private func logRejections(in settled: [Settled]) {
        let details = settled.compactMap { settled -> String? in
            guard case .letterKept(let received, .some) = settled.effect else { return nil }
            return received.letter.reason == .storeRejected ? received.letter.detail : nil
        }
        guard let detail = details.first, faults.isDue(.rejection, detail) else { return }
        service.log.warning(
            "PostgreSQL refuses the data of a notification, which became a dead letter: siwad dead-letters show explains it",
            ["count": "\(details.count)", "detail": detail]
        )
    }

    /// Answers a batch that is not stored in the database, and releases its reservations.
    ///
    /// - Parameters:
    ///   - response: nil: the batch is durable.
    ///   - isEarly: the writer works on the batch at the same time, and releases the reservations. Only submissions that have
    ///     no response yet are answered.
    ///   - inSpool: the batch has just been written there, where its letters are counted.
    func answer(
        _ batch: [Submission],
        _ response: IngestResponse? = nil,
        isEarly: Bool = false,
        inSpool: Bool = false
    ) {
        guard !batch.isEmpty else { return }
        let responses = batch.map { ($0, response ?? $0.work.responseWhenDurable) }
        for case .deadLetter(let received, _) in batch.map(\.work) {
            if inSpool {
                service.budget.spooled(received.letter.reason, isReserved: !isEarly)
            } else if !isEarly {
                service.budget.release(received.letter.reason)
            }
        }
        ResponseSink.deliver(isEarly ? service.queue.answeredEarly(responses) : service.queue.finished(responses))
    }

    var unavailable: IngestResponse {
        .unavailable(service.isClosed ? .shuttingDown : .databaseUnavailable, retryAfterSeconds: 5)
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
