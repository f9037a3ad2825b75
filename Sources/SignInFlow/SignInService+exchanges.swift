import AccountStore
import AppleTokens
import Basics
import Ingest
import JOSE
import Postgres
import SignIn
import Synchronization
import Telemetry
import WebClient

/// The exchanges that Apple did not answer during their sign-in. Any number of daemons share them: each claims its own.
extension SignInService {
    /// Between two looks for exchanges that are due, of this daemon or of one that has ended.
    private static let interval = Duration.seconds(1)
    private static let budget = Duration.seconds(6)
    /// How many codes this daemon trades at the same time: after an outage of Apple's, many wait, for five minutes at most.
    private static let share = 64
    /// How many of them are left when it claims others: with a claim for each that ends, it would commit twice as often.
    private static let refill = share * 3 / 4
    /// How long after its claim an answer may wait for Apple's key. Another daemon may claim the code after a minute.
    private static let verificationTime = Duration.seconds(40)
    /// Of the minute for which an exchange is claimed, the time in which its result can still be stored.
    private static let claimTime = Duration.seconds(55)
    /// Between two counts of the refresh tokens, which read all of them.
    private static let measurement = Duration.seconds(300)
    /// Until the next count after one that failed.
    private static let countRetry = Duration.seconds(30)

    /// Trades codes until ``finishExchanges()``.
    package func runExchanges() async {
        // Returns after the exchanges that are under way.
        await withDiscardingTaskGroup { group in
            var pauses = Backoff()
            while !isFinished.load(ordering: .acquiring), !Task.isCancelled {
                do throws(PostgresError) {
                    let free = Self.share - exchangesUnderWay.load(ordering: .acquiring)
                    let claimed = try await claim(free)
                    pauses = Backoff()
                    exchangesUnderWay.add(claimed.count, ordering: .acquiringAndReleasing)
                    for exchange in claimed {
                        group.addTask {
                            await self.trade(exchange)
                            self.exchangeEnded()
                        }
                    }
                    if isCountDue() { group.addTask { await self.countTokens() } }
                    // Otherwise more may be due, and there is room for them.
                    if claimed.count < free || exchangesUnderWay.load(ordering: .acquiring) > Self.refill {
                        await exchanges.wait(atMost: Self.interval)
                    }
                } catch {
                    if !error.isConnectionError, error.code != .cancelled {
                        database.faults.warning(.signIns, "codes that wait to be traded can't be read", error)
                    }
                    await exchanges.wait(atMost: pauses.next())
                }
            }
        }
    }

    private func claim(_ limit: Int) async throws(PostgresError) -> [PendingExchange] {
        guard limit > 0 else { return [] }
        let clients = means.policy.tradedClients
        return try await database.pool.transaction { transaction throws(PostgresError) in
            try SignIns.pendingExchanges(of: clients, limit: limit, in: transaction)
        }
    }

    private func exchangeEnded() {
        let underWay = exchangesUnderWay.subtract(1, ordering: .acquiringAndReleasing).oldValue
        if underWay == Self.refill + 1 { exchanges.signal() }
    }

    /// Ends ``runExchanges()`` after the exchanges that are under way.
    package func finishExchanges() {
        isFinished.store(true, ordering: .releasing)
        exchanges.signal()
    }

    private func isCountDue() -> Bool {
        tokenCount.withLock { count in
            guard count.dueAt <= .now else { return false }
            count.dueAt = .now + Self.measurement
            return true
        }
    }

    /// No code waits for the count. Sign-ins may, if the pool has one connection, so it has little time until it needs more.
    private func countTokens() async {
        let limit = tokenCount.withLock(\.limit)
        let counts: [RefreshTokenCount]
        do throws(PostgresError) {
            counts = try await database.pool.withSession(deadline: limit, RefreshTokens.counts)
        } catch {
            for state in SignInMetrics.states { metrics.tokens.gauge(state).set(.nan) }
            tokenCount.withLock { count in
                count.dueAt = .now + Self.countRetry
                if error.code == .timedOut { count.limit = min(limit * 2, .seconds(60)) }
            }
            if !error.isConnectionError, error.code != .cancelled {
                database.faults.warning(.tokenCounts, "the refresh tokens can't be counted; trying again", error)
            }
            return
        }
        for state in SignInMetrics.states {
            metrics.tokens.gauge(state).set(counts.filter { $0.state.rawValue == state }.map(\.count).reduce(0, +))
        }
    }

    private func trade(_ exchange: PendingExchange) async {
        let claimEnd = ContinuousClock.now + Self.claimTime
        let outcome = await outcome(of: exchange, means)
        do throws(Problem) {
            let refresh = try await database.finishExchange(
                exchange.signInID,
                outcome,
                claimEnd: claimEnd,
                isEnding: { isFinished.load(ordering: .acquiring) }
            )
            log.info(
                "a code was traded in the background",
                [
                    "account_id": "\(exchange.accountID)", "sign_in_id": "\(exchange.signInID)",
                    "attempt": "\(exchange.attempt)",
                    // nil: the sign-in was deleted.
                    "refresh_token": refresh?.rawValue ?? "none",
                ]
            )
        } catch {
            // The database's error is logged. Another attempt follows when the lease ends.
        }
    }

    private func outcome(of exchange: PendingExchange, _ means: SignInAttempt.Means) async -> ExchangeOutcome {
        let end = ContinuousClock.now + Self.verificationTime
        let now = WallTime.now()
        guard now < exchange.signedInAt + ExchangeSchedule.codeLifetime else { return .lost }
        guard let trade = means.policy.trade,
            let group = means.policy.audiences.group(audience: exchange.client.rawValue),
            trade.secrets.keyID(for: group) != nil
        else { return again(exchange, retryAfter: nil) }
        let code: SealedCode
        do throws(JOSEError) {
            code = try SealedCode(opening: exchange.sealedCode, for: exchange.client, with: trade.sealingKeys)
        } catch {
            database.faults.error(.sealing, "a code that waits to be traded can't be opened", error)
            return again(exchange, retryAfter: nil)
        }
        let exchanged = await means.exchanger.exchange(
            TradedCode(code: code.code, redirectURI: code.redirectURI, client: exchange.client, group: group),
            with: trade.secrets,
            budget: Self.budget
        )
        switch exchanged.answer {
        case .issued(let tokens): return await stored(tokens, exchange, trade.sealingKeys, means, until: end)
        // The attempt during the sign-in used it, and its answer got lost.
        case .grantRefused(let refusal) where refusal.detail == .alreadyUsed: return .lost
        case .grantRefused(let refusal), .requestRefused(let refusal), .clientRefused(let refusal):
            return .refused(refusal.code.rawValue)
        case .unavailable(let unavailability): return again(exchange, retryAfter: unavailability.retryAfter)
        }
    }

    private func stored(
        _ tokens: IssuedTokens,
        _ exchange: PendingExchange,
        _ keys: SealingKeys,
        _ means: SignInAttempt.Means,
        until end: ContinuousClock.Instant
    ) async -> ExchangeOutcome {
        guard let token = tokens.refreshToken else { return .lost }
        let message = "a refresh token that came in the background can't be stored"
        do throws(Problem) {
            try await verify(tokens, of: exchange, means, until: end)
        } catch {
            let reason = error.reason.rawValue
            // An alert looks at this outcome.
            if error.reason == .appleUnexpected { metrics.signIns.increment(reason) }
            if database.faults.isDue(.sealing, reason) { log.error(message, ["error": reason]) }
            return .lost
        }
        do throws(PostgresError) {
            return .stored(try UnsealedToken(text: token, keys: keys).seal(for: exchange.accountID, exchange.client))
        } catch {
            database.faults.error(.sealing, message, error)
            return .lost
        }
    }

    /// Verifies Apple's answer, again and again while its key can't be fetched: the code is used, so there is no other answer.
    ///
    /// - Parameter end: no repeat begins later.
    private func verify(
        _ tokens: IssuedTokens,
        of exchange: PendingExchange,
        _ means: SignInAttempt.Means,
        until end: ContinuousClock.Instant
    ) async throws(Problem) {
        while true {
            do throws(Problem) {
                _ = try await means.identity(
                    of: tokens,
                    client: exchange.client,
                    presentedSubject: exchange.subject,
                    nonce: nil
                )
                return
            } catch {
                // A shutdown does not wait for Apple's key.
                let isEnding = isFinished.load(ordering: .acquiring) || Task.isCancelled
                guard error.reason == .keysUnavailable, !isEnding, ContinuousClock.now + Self.interval < end else {
                    throw error
                }
            }
            // A cancellation ends the loop above.
            try? await Task.sleep(for: Self.interval)
        }
    }

    private func again(_ exchange: PendingExchange, retryAfter: Int?) -> ExchangeOutcome {
        ExchangeSchedule.next(
            after: Int(exchange.attempt),
            issuedAt: exchange.signedInAt,
            retryAfter: retryAfter,
            now: .now()
        ).map(ExchangeOutcome.again) ?? .lost
    }
}
