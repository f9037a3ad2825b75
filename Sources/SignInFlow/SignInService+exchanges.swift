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
    private static let share = 16
    /// Between two counts of the refresh tokens, which read all of them.
    private static let measurement = Duration.seconds(300)

    /// Trades codes until ``finishExchanges()``.
    package func runExchanges() async {
        var pauses = Backoff()
        var measuredAt: ContinuousClock.Instant?
        while !isFinished.load(ordering: .acquiring), !Task.isCancelled {
            do throws(PostgresError) {
                let claimed = try await database.pool.transaction { transaction throws(PostgresError) in
                    try SignIns.pendingExchanges(limit: Self.share, in: transaction)
                }
                await withTaskGroup { group in
                    for exchange in claimed { group.addTask { await self.trade(exchange) } }
                }
                if measuredAt.map({ .now - $0 >= Self.measurement }) ?? true {
                    try await measure()
                    measuredAt = .now
                }
                pauses = Backoff()
                if claimed.count < Self.share { await exchanges.wait(atMost: Self.interval) }
            } catch {
                if !error.isConnectionError, error.code != .cancelled {
                    database.faults.warning(.signIns, "codes that wait to be traded can't be read", error)
                }
                await exchanges.wait(atMost: pauses.next())
            }
        }
    }

    /// Ends ``runExchanges()`` after the exchanges that are under way.
    package func finishExchanges() {
        isFinished.store(true, ordering: .releasing)
        exchanges.signal()
    }

    private func measure() async throws(PostgresError) {
        let counts = try await database.pool.withSession(RefreshTokens.counts)
        for state in SignInMetrics.states {
            metrics.tokens.gauge(state).set(counts.filter { $0.state.rawValue == state }.map(\.count).reduce(0, +))
        }
    }

    private func trade(_ exchange: PendingExchange) async {
        let outcome = await outcome(of: exchange, means)
        do throws(Problem) {
            // nil: the sign-in was deleted.
            let refresh = try await database.finishExchange(exchange.signInID, outcome)?.rawValue ?? "none"
            log.info(
                "a code was traded in the background",
                [
                    "account_id": "\(exchange.accountID)", "sign_in_id": "\(exchange.signInID)",
                    "attempt": "\(exchange.attempt)", "refresh_token": refresh,
                ]
            )
        } catch {
            // The database's error is logged. Another attempt follows when the lease ends.
        }
    }

    private func outcome(of exchange: PendingExchange, _ means: SignInAttempt.Means) async -> ExchangeOutcome {
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
        case .issued(let tokens): return await stored(tokens, exchange, trade.sealingKeys, means)
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
        _ means: SignInAttempt.Means
    ) async -> ExchangeOutcome {
        guard let token = tokens.refreshToken else { return .lost }
        do {
            _ = try await means.identity(
                of: tokens,
                client: exchange.client,
                presentedSubject: exchange.subject,
                nonce: nil
            )
            return .stored(try UnsealedToken(text: token, keys: keys).seal(for: exchange.accountID, exchange.client))
        } catch {
            database.faults.error(.sealing, "a refresh token that came in the background can't be stored", error)
            return .lost
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
