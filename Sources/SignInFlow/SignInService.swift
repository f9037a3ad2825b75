import AccountStore
package import AppleTokens
import Basics
package import Ingest
import JOSE
package import Postgres
package import SignIn
import Synchronization
package import Telemetry
import WebClient

/// Signs people in for the callers of the application endpoint, and trades codes in the background.
package final class SignInService: ApplicationService {
    private let keys: KeyRing
    private let exchanger: CodeExchanger
    let database: SignInDatabase
    let metrics: SignInMetrics
    let log: Log
    private let current: Mutex<SignInAttempt.Means>
    private let isDraining = Atomic(false)
    /// Ends the waits of ``runExchanges()``.
    let exchanges = WakeupEvent()
    let isFinished = Atomic(false)
    /// Started by ``runExchanges()``.
    let exchangesUnderWay = Atomic(0)
    /// When the refresh tokens are counted next, and how long that may take.
    let tokenCount = Mutex((dueAt: ContinuousClock.now, limit: Duration.seconds(3)))

    /// - Parameter onDatabaseError: called with each error that becomes the problem `database-unavailable`.
    package init(
        policy: SignInPolicy,
        keys: KeyRing,
        exchanger: CodeExchanger,
        pool: ConnectionPool,
        metrics: SignInMetrics,
        log: Log,
        onDatabaseError: @escaping @Sendable (PostgresError) -> Void = { _ in }
    ) {
        self.keys = keys
        self.exchanger = exchanger
        self.metrics = metrics
        self.log = log
        let database = SignInDatabase(pool: pool, faults: FaultLog(log), onError: onDatabaseError)
        self.database = database
        current = Mutex(Self.means(policy, keys, exchanger, database, metrics, log))
    }

    var means: SignInAttempt.Means { current.withLock { $0 } }

    /// Later requests follow this policy.
    package func replace(policy: SignInPolicy) {
        let means = Self.means(policy, keys, exchanger, database, metrics, log)
        current.withLock { $0 = means }
    }

    /// The shutdown has begun: later requests are refused.
    package func drain() {
        isDraining.store(true, ordering: .relaxed)
    }

    private static func means(
        _ policy: SignInPolicy,
        _ keys: KeyRing,
        _ exchanger: CodeExchanger,
        _ database: SignInDatabase,
        _ metrics: SignInMetrics,
        _ log: Log
    ) -> SignInAttempt.Means {
        SignInAttempt.Means(
            policy: policy,
            presented: SharedIdentityVerifier(policy: policy.identity, keys: keys),
            answered: SharedIdentityVerifier(policy: policy.answerIdentity, keys: keys),
            exchanger: exchanger,
            database: database,
            metrics: metrics,
            log: log
        )
    }
}

// MARK: - Requests

extension SignInService {
    package func signIn(_ request: SignInRequest, by caller: Caller?) async throws(Problem) -> SignInAnswer {
        let start = ContinuousClock.now
        let name = caller?.name ?? ""
        do throws(Problem) {
            let answer = try await attempt(request, caller, name)
            metrics.duration.record(.now - start)
            metrics.signIns.increment(answer.isRepeated ? "repeated" : "signed-in")
            log.info(
                answer.isRepeated ? "sign-in repeated" : "signed in",
                [
                    "account_id": "\(answer.account.id)", "sign_in_id": "\(answer.signInID)", "caller": name,
                    "refresh_token": answer.refreshToken.rawValue,
                    "refresh_token_error": answer.refreshTokenError ?? "",
                ]
            )
            return answer
        } catch {
            metrics.duration.record(.now - start)
            metrics.signIns.increment(error.reason.rawValue)
            logRefusal(error, by: caller)
            throw error
        }
    }

    package func signInRefused(_ problem: Problem, by caller: Caller?) {
        let reason = problem.reason.rawValue
        metrics.signIns.increment(reason)
        // A body is parsed only for a caller who is accepted. All else can come from a stranger, in any number.
        guard problem.reason == .malformedRequest || database.faults.isDue(.refusedSignIn(reason)) else { return }
        logRefusal(problem, by: caller)
    }

    private func logRefusal(_ problem: Problem, by caller: Caller?) {
        log.info("sign-in refused", ["reason": problem.reason.rawValue, "caller": caller?.name ?? ""])
    }

    package func issueNonce(for client: ClientID, by caller: Caller?) async throws(Problem) -> IssuedNonce {
        try admit()
        let policy = means.policy
        _ = try group(of: client, for: caller, policy)
        guard let nonces = policy.nonces else {
            throw Problem(.notFound, "siwad issues no nonces, because SIWAD_SEALING_KEYS is not set.")
        }
        do throws(JOSEError) {
            let nonce = try nonces.issue(for: client, now: .now())
            let digest = SHA256.digest(Array(nonce.utf8).span)
            return IssuedNonce(nonce: nonce, sha256: digest.hexadecimal, expiresIn: IssuedNonces.lifetime)
        } catch {
            log.error("a nonce can't be issued", ["error": "\(error)"])
            throw Problem(.overloaded, "libcrypto lacks memory.")
        }
    }

    package func session(_ id: String, by caller: Caller?) async throws(Problem) -> SessionAnswer {
        try admit()
        let session = try await find(id, caller)
        return SessionAnswer(isLive: session.isLive, endedAt: session.endedAt, endReason: session.endReason)
    }

    package func endSession(_ id: String, by caller: Caller?) async throws(Problem) {
        try admit()
        _ = try await find(id, caller)
        do throws(PostgresError) {
            try await database.pool.withSession { session throws(PostgresError) in
                _ = try Applications.endSession(id, in: session)
            }
        } catch {
            throw database.unavailable(error)
        }
    }

    // MARK: - Private parts

    private func admit() throws(Problem) {
        guard !isDraining.load(ordering: .relaxed) else {
            throw Problem(.draining, "siwad is shutting down; send it again.", retryAfter: 5)
        }
    }

    private func attempt(_ request: SignInRequest, _ caller: Caller?, _ name: String) async throws(Problem)
        -> SignInAnswer
    {
        try admit()
        let means = means
        let group = try group(of: request.client, for: caller, means.policy)
        if request.authorizationCode != nil {
            guard means.policy.trade?.secrets.keyID(for: group) != nil else {
                let detail = "Codes can't be traded: SIWAD_APPLE_KEYS has no key for this client. Leave the code out."
                throw Problem(.malformedRequest, detail)
            }
        } else if means.policy.exchange == .required {
            throw Problem(.malformedRequest, "authorization_code is missing: SIWAD_CODE_EXCHANGE is required.")
        }
        return try await SignInAttempt(request: request, caller: name, group: group, means: means).run()
    }

    private func group(
        of client: ClientID,
        for caller: Caller?,
        _ policy: SignInPolicy
    ) throws(Problem) -> AudienceMap.Group {
        guard caller?.mayActFor(client) ?? true else {
            throw Problem(.clientNotAllowed, "SIWAD_APPLICATION_TOKENS allows this caller other client ids only.")
        }
        guard let group = policy.audiences.group(audience: client.rawValue) else {
            throw Problem(.unknownClient, "SIWAD_APPS has no such client id.")
        }
        return group
    }

    /// A session of an app that the caller may act for.
    private func find(_ id: String, _ caller: Caller?) async throws(Problem) -> AccountSession {
        let found: AccountSession?
        do throws(PostgresError) {
            found = try await database.pool.withSession { session throws(PostgresError) in
                try Sessions.list(SessionFilter(id: id, limit: 1), in: session).first
            }
        } catch {
            throw database.unavailable(error)
        }
        let audiences = means.policy.audiences
        guard let found,
            caller?.clients?.contains(where: { audiences.group(audience: $0.rawValue)?.app == found.app }) ?? true
        else { throw Problem(.notFound, "There is no such session.") }
        return found
    }
}
