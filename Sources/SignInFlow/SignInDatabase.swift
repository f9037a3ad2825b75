import AccountStore
import AppleTokens
import Basics
import Ingest
import JOSE
import Postgres
import SignIn

/// How far a sign-in came with the statement that reserves it.
enum SignInStart: Sendable, Equatable {
    case reserved(Int64)
    /// It had no code to trade.
    case settled(SettledSignIn)
    case repeated(SettledSignIn)
    case refused(SignInConflict)
}

/// The sign-ins in the database, with errors as problems.
struct SignInDatabase: Sendable {
    /// For one statement or transaction.
    private static let deadline = Duration.seconds(3)
    /// For a transaction of several sign-ins, which waits for no row of a person.
    private static let batchDeadline = Duration.seconds(1)
    /// How long a result of Apple's, which exists only once, is tried to be stored: more than one `deadline`. For a sign-in,
    /// ``settle(_:_:until:)`` may end it earlier.
    private static let persistence = Duration.seconds(5)

    let pool: ConnectionPool
    let faults: FaultLog
    private let onError: @Sendable (PostgresError) -> Void
    private let batches: SignInBatches

    /// - Parameter onError: called with each error that becomes the problem `database-unavailable`.
    init(pool: ConnectionPool, faults: FaultLog, onError: @escaping @Sendable (PostgresError) -> Void) {
        self.pool = pool
        self.faults = faults
        self.onError = onError
        batches = SignInBatches(pool: pool, deadline: Self.batchDeadline)
    }

    /// Reserves a sign-in.
    ///
    /// - Parameter settlement: of a sign-in without a code to trade, which is settled immediately if possible.
    func reserve(_ new: NewSignIn, settling settlement: Settlement?) async throws(Problem) -> SignInStart {
        do throws(PostgresError) {
            let written = try await writeTogether(SignInWrite(reservation: new, settlement: settlement))
            if let signIn = written?.settled { return .settled(signIn) }
            if let signInID = written?.signInID { return .reserved(signInID) }
            let reservation = try await pool.withSession(deadline: Self.deadline) { session throws(PostgresError) in
                try SignIns.reserve(new, in: session)
            }
            switch reservation {
            case .reserved(let signInID): return .reserved(signInID)
            case .repeated(let signIn): return .repeated(signIn)
            case .refused(let conflict): return .refused(conflict)
            }
        } catch {
            throw unavailable(error)
        }
    }

    /// Settles a sign-in, and stores its refresh token sealed.
    ///
    /// - Parameter end: no repeat begins later. At least one attempt is made.
    func settle(
        _ settlement: Settlement,
        _ token: UnsealedToken?,
        until end: ContinuousClock.Instant
    ) async throws(Problem) -> SettledSignIn {
        // Whatever its error is: settling again has the same result.
        let together = try? await writeTogether(SignInWrite(settlement: settlement, token: token))
        if let signIn = together?.settled { return signIn }
        let end = min(end, ContinuousClock.now + Self.persistence)
        let settled = try await persistently(until: end) { () async throws(PostgresError) in
            try await pool.transaction(deadline: Self.deadline) { transaction throws(PostgresError) in
                let settled = try SignIns.settle(settlement, in: transaction)
                if let token, case .settled(let signIn) = settled {
                    try RefreshTokens.store(
                        try token.seal(for: signIn.accountID, signIn.client),
                        of: signIn,
                        in: transaction
                    )
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

    /// Stores the outcome of an exchange in the background. A token, which exists only once, is tried to be stored until the
    /// claim of the exchange ends; anything else is found again by the next attempt.
    func finishExchange(
        _ signInID: Int64,
        _ outcome: ExchangeOutcome,
        claimEnd: ContinuousClock.Instant,
        isEnding: () -> Bool
    ) async throws(Problem) -> RefreshOutcome? {
        var end = ContinuousClock.now + Self.persistence
        if case .stored = outcome { end = max(end, claimEnd) }
        return try await persistently(until: end, isEnding: isEnding) { () async throws(PostgresError) in
            try await pool.transaction(deadline: Self.deadline) { transaction throws(PostgresError) in
                try SignIns.finishExchange(signInID, outcome, in: transaction)
            }
        }
    }

    func unavailable(_ error: PostgresError) -> Problem {
        if error.code != .cancelled {
            faults.warning(.signIns, "the database can't serve a sign-in; it is answered 503", error)
        }
        onError(error)
        return Problem(.databaseUnavailable, "The database is not available at present.", retryAfter: 2)
    }

    /// nil if it has to be written by itself, perhaps because of another one that waited at the same time.
    private func writeTogether(_ write: SignInWrite) async throws(PostgresError) -> SignInWritten? {
        do throws(PostgresError) {
            return try await batches.write(write)
        } catch {
            if error.isConnectionError || error.isOutcomeUnknown { throw error }
            // Another writer interfered, which is usual.
            let isExpected = error.isConflict || [.uniqueViolation, .lockNotAvailable].contains(error.sqlState)
            if !isExpected {
                let message = "several sign-ins can't be written together; each is written by itself"
                faults.warning(.signInBatches, message, error)
            }
            return nil
        }
    }

    /// - Parameters:
    ///   - end: no repeat begins later. At least one attempt is made.
    ///   - isEnding: whether the daemon shuts down, which waits for the usual time only.
    private func persistently<Value: Sendable>(
        until end: ContinuousClock.Instant,
        isEnding: () -> Bool = { false },
        _ work: () async throws(PostgresError) -> Value
    ) async throws(Problem) -> Value {
        let start = ContinuousClock.now
        var pauses = Backoff()
        while true {
            let pause = pauses.next()
            do throws(PostgresError) {
                return try await work()
            } catch {
                // Read-only: a standby, or a primary that has just become one; the next connection may lead to the new primary.
                let isTemporary = error.isRetryable || error.sqlState == .readOnlyTransaction
                let end = isEnding() ? min(end, start + Self.persistence) : end
                guard isTemporary, ContinuousClock.now + pause < end else { throw unavailable(error) }
            }
            // The task of a sign-in is never cancelled.
            try? await Task.sleep(for: pause)
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
            case .notYetValid:
                (.notYetValid, "The sign-in is more than five minutes ahead of the database's clock.")
            case .unknownClient: (.unknownClient, "The database has no such client id; siwad adds all of SIWAD_APPS.")
            }
        self.init(reason, detail)
    }
}
