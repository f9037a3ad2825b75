import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

/// 32 bytes that stand for the SHA-256 of a text of at most 32 bytes.
func digest(_ text: String) -> [UInt8] {
    precondition(text.utf8.count <= 32, "\(text) is too long")
    return Array(text.utf8) + [UInt8](repeating: 0, count: 32 - text.utf8.count)
}

extension NewSignIn {
    /// A native sign-in with an identity token of this name; its nonce has the same name.
    static func sample(
        _ token: String,
        of sub: String? = "p",
        at time: WallTime? = .at(0),
        nonce: String? = nil,
        code: String? = nil,
        attempt: String? = nil,
        client: String = "com.example.one",
        session: String? = nil,
        device: SignInDevice? = nil
    ) -> NewSignIn {
        NewSignIn(
            presentedDigest: digest(token),
            nonceDigest: digest(nonce ?? token),
            codeDigest: code.map(digest),
            attempt: attempt.map(digest),
            client: ClientID(client),
            caller: "backend",
            kind: sub == nil ? .code : .native,
            subject: sub.map { Subject($0) },
            issuedAt: sub == nil ? nil : time,
            sessionID: session,
            device: device
        )
    }
}

extension Settlement {
    static func sample(
        _ id: Int64,
        of sub: String = "p",
        at time: WallTime = .at(0),
        email: VerifiedIdentity.Email? = nil,
        name: Name? = nil,
        keepsNames: Bool = true,
        refresh: RefreshState = .none,
        session: String? = nil
    ) -> Settlement {
        Settlement(
            signInID: id,
            subject: Subject(sub),
            email: email,
            signedInAt: time,
            name: name,
            keepsNames: keepsNames,
            refresh: refresh,
            session: session.map { Session(id: $0, createdAt: time, expiresAt: nil) }
        )
    }
}

extension Reservation {
    var signInID: Int64? {
        guard case .reserved(let id) = self else { return nil }
        return id
    }

    var answer: SettledSignIn? {
        guard case .repeated(let answer) = self else { return nil }
        return answer
    }
}

extension Settled {
    var answer: SettledSignIn? {
        guard case .settled(let answer) = self else { return nil }
        return answer
    }
}

extension Store {
    static let token = SealedToken(sealed: Array("sealed".utf8), keyName: "key")

    func reserve(_ new: NewSignIn) async throws -> Reservation {
        try await connection.withSession { session throws(PostgresError) in try SignIns.reserve(new, in: session) }
    }

    func settle(_ settlement: Settlement, token: SealedToken = Store.token) async throws -> Settled {
        try await connection.transaction { session throws(PostgresError) in
            try Self.settle(settlement, token: token, in: session)
        }
    }

    /// Settles and stores the token, as the flow of a sign-in does.
    static func settle(
        _ settlement: Settlement,
        token: SealedToken = Store.token,
        in transaction: borrowing Session
    ) throws(PostgresError) -> Settled {
        let settled = try SignIns.settle(settlement, in: transaction)
        if case .settled(let signIn) = settled, settlement.refresh == .stored {
            try RefreshTokens.store(token, of: signIn, in: transaction)
        }
        return settled
    }

    /// Reserves and settles.
    ///
    /// - Returns: nil if either was refused.
    @discardableResult
    func signInWhole(
        _ token: String,
        of sub: String = "p",
        at time: WallTime = .at(0),
        client: String = "com.example.one",
        name: Settlement.Name? = nil,
        refresh: RefreshState = .none,
        session: String? = nil,
        device: SignInDevice? = nil
    ) async throws -> SettledSignIn? {
        let new = NewSignIn.sample(token, of: sub, at: time, client: client, session: session, device: device)
        guard let id = try await reserve(new).signInID else { return nil }
        return try await settle(
            .sample(id, of: sub, at: time, name: name, refresh: refresh, session: session)
        ).answer
    }

    /// Settles a sign-in whose code is due at a time.
    func pendingExchange(
        _ token: String,
        of sub: String = "p",
        at time: WallTime = .at(0),
        due: WallTime = .at(1)
    ) async throws -> Int64 {
        let code = RefreshState.pending(sealedCode: Array(token.utf8), due: due)
        return try #require(try await signInWhole(token, of: sub, at: time, refresh: code)).signInID
    }

    /// - Parameter clients: whose codes the daemon can trade.
    func claimExchanges(
        of clients: [ClientID] = [ClientID("com.example.one")],
        limit: Int = 10
    ) async throws -> [PendingExchange] {
        try await connection.withSession { session throws(PostgresError) in
            try SignIns.pendingExchanges(of: clients, limit: limit, in: session)
        }
    }

    func finishExchange(_ id: Int64, _ outcome: ExchangeOutcome) async throws -> RefreshOutcome? {
        try await connection.transaction { session throws(PostgresError) in
            try SignIns.finishExchange(id, outcome, in: session)
        }
    }

    /// Lets the lease of all sign-ins end.
    func endLeases() async throws {
        try await run("UPDATE siwa.sign_ins SET lease_until = clock_timestamp() - interval '1 ms'")
    }

    func count(_ table: String) async throws -> Int {
        Int(try await texts("SELECT count(*)::text FROM siwa.\(table)")[0]) ?? -1
    }

    /// Waits until a statement of this database waits for a lock of another one.
    func untilAnotherWaits() async throws {
        let observer = try await PostgresConnection.connect(database.settings)
        var isWaiting = false
        while !isWaiting {
            isWaiting = try await observer.withSession { session throws(PostgresError) in
                try session.execute(
                    once: """
                        SELECT EXISTS (
                            SELECT FROM pg_stat_activity
                            WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event <> 'advisory'
                        )
                        """
                ).bool(0, 0)
            }
        }
        await observer.close()
    }
}
