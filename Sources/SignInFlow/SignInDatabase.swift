import AccountStore
import AppleTokens
import Basics
import Ingest
import JOSE
import Postgres
import SignIn

/// The sign-ins in the database, with errors as problems.
struct SignInDatabase: Sendable {
    /// For one statement or transaction.
    private static let deadline = Duration.seconds(3)
    /// How long a result of Apple's, which exists only once, is tried to be stored.
    private static let persistence = Duration.seconds(2)

    let pool: ConnectionPool
    let faults: FaultLog

    func reserve(_ new: NewSignIn) async throws(Problem) -> Reservation {
        do throws(PostgresError) {
            return try await pool.withSession(deadline: Self.deadline) { session throws(PostgresError) in
                try SignIns.reserve(new, in: session)
            }
        } catch {
            throw unavailable(error)
        }
    }

    /// Settles a sign-in, and stores its refresh token sealed.
    func settle(
        _ settlement: Settlement,
        _ token: (text: String, keys: SealingKeys)?
    ) async throws(Problem) -> SettledSignIn {
        let settled = try await persistently { () async throws(PostgresError) in
            try await pool.transaction(deadline: Self.deadline) { transaction throws(PostgresError) in
                let settled = try SignIns.settle(settlement, in: transaction)
                if let token, case .settled(let signIn) = settled {
                    let sealed = try Self.seal(token.text, signIn.accountID, signIn.client, token.keys)
                    try RefreshTokens.store(sealed, of: signIn, in: transaction)
                }
                return settled
            }
        }
        switch settled {
        case .settled(let signIn): return signIn
        case .refused(let conflict): throw Problem(conflict)
        }
    }

    /// Gives a reservation back. If that fails, it ends after 15 seconds.
    func release(_ signInID: Int64) async {
        _ = try? await pool.withSession(deadline: Self.deadline) { session throws(PostgresError) in
            try SignIns.release(signInID, in: session)
        }
    }

    /// Gives a reservation back whose code may have been used. If that fails, it ends after 15 seconds.
    func abandon(_ signInID: Int64) async {
        _ = try? await pool.withSession(deadline: Self.deadline) { session throws(PostgresError) in
            try SignIns.abandon(signInID, in: session)
        }
    }

    func finishExchange(_ signInID: Int64, _ outcome: ExchangeOutcome) async throws(Problem) -> RefreshOutcome? {
        try await persistently { () async throws(PostgresError) in
            try await pool.transaction(deadline: Self.deadline) { transaction throws(PostgresError) in
                try SignIns.finishExchange(signInID, outcome, in: transaction)
            }
        }
    }

    static func seal(
        _ token: String,
        _ account: Int64,
        _ client: ClientID,
        _ keys: SealingKeys
    ) throws(PostgresError) -> SealedToken {
        do throws(JOSEError) {
            let sealed = try SealedRefreshToken(account: account, client: client).seal(token, with: keys)
            return SealedToken(sealed: sealed, keyName: keys.first)
        } catch {
            throw PostgresError(.usage, "a refresh token can't be sealed: \(error)")
        }
    }

    func unavailable(_ error: PostgresError) -> Problem {
        if error.code != .cancelled {
            faults.warning(.signIns, "the database can't serve a sign-in; it is answered 503", error)
        }
        return Problem(.databaseUnavailable, "The database is not available at present.", retryAfter: 2)
    }

    private func persistently<Value: Sendable>(
        _ work: () async throws(PostgresError) -> Value
    ) async throws(Problem) -> Value {
        let end = ContinuousClock.now + Self.persistence
        var pauses = Backoff()
        while true {
            do throws(PostgresError) {
                return try await work()
            } catch {
                guard error.isRetryable, .now < end else { throw unavailable(error) }
            }
            // The task of a sign-in is never cancelled.
            try? await Task.sleep(for: pauses.next())
        }
    }
}

extension Problem {
    init(_ conflict: SignInConflict) {
        let (reason, detail): (Reason, String) =
            switch conflict {
            case .tokenUsed:
                (
                    .tokenUsed,
                    "It belongs to another sign-in. A repeated request needs the same session id or Idempotency-Key, and the "
                        + "same code and nonce."
                )
            case .nonceUsed: (.nonceUsed, "Each nonce may be used for one sign-in: issue another one for each attempt.")
            case .sessionTaken: (.sessionTaken, "Make a session id for each sign-in that no other session has.")
            case .consentRevoked:
                (
                    .consentRevoked,
                    "The person stopped using Sign in with Apple for the app after Apple issued the token."
                )
            case .accountDeleted: (.accountDeleted, "The person deleted the Apple Account.")
            case .inProgress: (.inProgress, "Another request with the same token is being processed.")
            case .unknownClient: (.unknownClient, "The database has no such client id; siwad adds those of SIWAD_APPS.")
            }
        self.init(reason, detail)
    }
}
