package import AppleTokens
package import Basics
package import Postgres

/// Sign-ins (`siwa.sign_ins`): each is reserved, its code is traded, and then it is settled.
///
/// Every function executes one statement. What may be used only once is decided by unique constraints, so it holds across
/// daemons.
package enum SignIns {
    /// Reserves a sign-in for 15 seconds, before its code is used. Outside a transaction, it is durable when this returns.
    ///
    /// A refusal changes nothing. A sign-in of another process that was not settled within its 15 seconds is taken over.
    package static func reserve(
        _ new: NewSignIn,
        in transaction: borrowing Session
    ) throws(PostgresError) -> Reservation {
        let binds = Binds {
            $0.append(new.presentedDigest)
            $0.append(new.nonceDigest)
            $0.append(new.codeDigest)
            $0.append(new.client)
            $0.append(new.kind)
            $0.append(new.caller)
            $0.append(new.attempt)
            $0.append(new.subject)
            $0.append(new.issuedAt)
            $0.append(new.sessionID)
            $0.append(new.device?.platform)
            $0.append(new.device?.model)
            $0.append(new.device?.label)
        }
        let rows = try transaction.execute(reserve, binds)
        let outcome = try rows.string(0, 0)
        switch outcome {
        case "reserved": return .reserved(signInID: try rows.int64(0, 1))
        case "repeated": return .repeated(try SettledSignIn(rows))
        default: return .refused(try SignInConflict(outcome: outcome))
        }
    }

    /// Records the sign-in, opens its session, and finishes the row: all of it, or after a refusal nothing.
    ///
    /// For ``RefreshState/stored``, the caller then seals the token for the account of the result, and passes it to
    /// ``RefreshTokens/store(_:of:in:)`` in the same transaction: the sealed text names the account, which a new person has
    /// only now. Settling again, for example after a commit whose outcome is unknown, returns the same result.
    ///
    /// - Throws: SQLSTATE SW006 for a time more than five minutes ahead, SW005 for a session that expires before it opens.
    package static func settle(
        _ settlement: Settlement,
        in transaction: borrowing Session
    ) throws(PostgresError) -> Settled {
        let (name, session) = (settlement.keepsNames ? settlement.name : nil, settlement.session)
        let refresh = settlement.refresh.columns
        let binds = Binds {
            $0.append(settlement.signInID)
            $0.append(settlement.subject)
            $0.append(settlement.email?.address)
            $0.append(settlement.email?.isPrivate)
            $0.append(settlement.signedInAt)
            $0.append(name?.given)
            $0.append(name?.family)
            $0.append(settlement.realUserStatus)
            $0.append(refresh.outcome)
            $0.append(refresh.error)
            $0.append(refresh.sealedCode)
            $0.append(refresh.due)
            $0.append(session?.id)
            $0.append(session?.createdAt)
            $0.append(session?.expiresAt)
        }
        let rows = try transaction.execute(settle, binds)
        let outcome = try rows.string(0, 0)
        return outcome == "settled"
            ? .settled(try SettledSignIn(rows)) : .refused(try SignInConflict(outcome: outcome))
    }

    /// Gives a sign-in back that is not settled, so that its token and nonce can be used again.
    package static func release(_ signInID: Int64, in transaction: borrowing Session) throws(PostgresError) {
        _ = try transaction.execute(release, signInID)
    }

    /// Lets the next request with the same token take a sign-in over that is not settled. Its code may have been used, so that
    /// Apple's refusal of it counts as ``RefreshOutcome/lost`` then.
    package static func abandon(_ signInID: Int64, in transaction: borrowing Session) throws(PostgresError) {
        _ = try transaction.execute(abandon, signInID)
    }

    private static let reserve = Statement(
        """
        SELECT (r.answer).* FROM (
            SELECT CASE
                -- siwa.settle_sign_in would refuse this time, but only after the code was used.
                WHEN $9::timestamptz > clock_timestamp() + interval '5 minutes'
                THEN jsonb_populate_record(NULL::siwa.sign_in_answer, '{"outcome": "not-yet-valid"}')
                ELSE siwa.reserve_sign_in(
                    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10,
                    nullif(
                        jsonb_strip_nulls(
                            jsonb_build_object('platform', $11::text, 'model', $12::text, 'label', $13::text)
                        ),
                        '{}'
                    )
                )
            END AS answer
            OFFSET 0
        ) AS r
        """
    )
    private static let settle = Statement(
        "SELECT r.* FROM siwa.settle_sign_in($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) AS r"
    )
    private static let release = Statement(
        "DELETE FROM siwa.sign_ins WHERE sign_in_id = $1 AND settled_at IS NULL"
    )
    private static let abandon = Statement(
        "UPDATE siwa.sign_ins SET lease_until = clock_timestamp() WHERE sign_in_id = $1 AND settled_at IS NULL"
    )
}

// MARK: - Background exchange

/// A sign-in whose code is traded in the background.
package struct PendingExchange: Sendable, Equatable {
    package let signInID: Int64
    package let accountID: Int64
    package let client: ClientID
    package let subject: Subject
    /// `iat` of the identity token: Apple accepts the code for five minutes from then on.
    package let signedInAt: WallTime
    package let sealedCode: [UInt8]
    /// Counts this attempt, from 1.
    package let attempt: Int32
}

package enum ExchangeOutcome: Sendable, Equatable {
    case stored(SealedToken)
    /// Another attempt follows at this time.
    case again(WallTime)
    /// The code is given up.
    case lost
    /// Apple's code of the error. The code is given up.
    case refused(String)
}

extension SignIns {
    /// Claims due exchanges for a minute, the ones that are due longest first. Other daemons get others.
    ///
    /// - Parameter clients: whose codes the caller can trade. It also gets the codes of others that Apple no longer accepts.
    package static func pendingExchanges(
        of clients: [ClientID],
        limit: Int,
        in transaction: borrowing Session
    ) throws(PostgresError) -> [PendingExchange] {
        let binds = Binds { binds in
            binds.append(Int64(limit))
            binds.appendTexts(clients.count) { clients[$0].rawValue }
        }
        return try transaction.execute(claimExchanges, binds).decode(PendingExchange.init)
    }

    /// The number of codes that wait to be traded. Apple accepts a code for five minutes; older ones only wait to be erased.
    package static func waitingCodes(in session: borrowing Session) throws(PostgresError) -> Int {
        let sql = """
            SELECT count(*) FROM siwa.sign_ins
            WHERE code_due_at IS NOT NULL AND signed_in_at > now() - interval '5 minutes'
            """
        return Int(try session.execute(once: sql).int64(0, 0))
    }

    /// Stores the outcome of an exchange. All but ``ExchangeOutcome/again(_:)`` erase the code. A token of a person who has
    /// revoked the consent since, or whose account was deleted, is not kept.
    ///
    /// - Returns: what became of the refresh token; nil if the sign-in doesn't exist any more.
    @discardableResult
    package static func finishExchange(
        _ signInID: Int64,
        _ outcome: ExchangeOutcome,
        in transaction: borrowing Session
    ) throws(PostgresError) -> RefreshOutcome? {
        let columns = outcome.columns
        let rows = try transaction.execute(
            finishExchange,
            signInID,
            columns.outcome,
            columns.error,
            columns.due,
            columns.token?.sealed,
            columns.token?.keyName
        )
        return try rows.value(0, 0)
    }

    private static let claimExchanges = Statement("SELECT * FROM siwa.claim_exchanges($1, $2)")
    private static let finishExchange = Statement("SELECT siwa.finish_exchange($1, $2, $3, $4, $5, $6)")
}

// MARK: - Columns

extension SignInConflict {
    fileprivate init(outcome: String) throws(PostgresError) {
        guard let conflict = SignInConflict(rawValue: outcome) else {
            throw PostgresError(.decoding, "unknown outcome \(outcome); use the siwad that migrated the database")
        }
        self = conflict
    }
}

extension SettledSignIn {
    /// Reads a row of the type `siwa.sign_in_answer`, which begins with the outcome.
    init(_ rows: borrowing Rows, _ row: Int = 0) throws(PostgresError) {
        signInID = try rows.value(row, 1)
        client = try rows.value(row, 2)
        app = try rows.value(row, 3)
        team = try rows.value(row, 4)
        accountID = try rows.value(row, 5)
        subject = try rows.value(row, 6)
        state = try rows.value(row, 7)
        isNewAccount = try rows.value(row, 8)
        signedInAt = try rows.value(row, 9)
        if let address = try rows.optionalString(row, 10) {
            email = Email(
                address: address,
                isPrivate: try rows.value(row, 11),
                isDeliverable: try rows.value(row, 12)
            )
        } else {
            email = nil
        }
        if let capturedAt = try rows.value(row, 15) as WallTime? {
            name = Name(given: try rows.value(row, 13), family: try rows.value(row, 14), capturedAt: capturedAt)
        } else {
            name = nil
        }
        realUserStatus = try rows.value(row, 16)
        refresh = try rows.value(row, 17)
        refreshError = try rows.value(row, 18)
        if let createdAt = try rows.value(row, 21) as WallTime? {
            session = Session(
                id: try rows.value(row, 19),
                isLive: try rows.value(row, 20),
                createdAt: createdAt,
                expiresAt: try rows.value(row, 22)
            )
        } else {
            session = nil
        }
    }
}

extension RefreshState {
    var columns: (outcome: RefreshOutcome, error: String?, sealedCode: [UInt8]?, due: WallTime?) {
        switch self {
        case .stored: (.stored, nil, nil, nil)
        case .pending(let sealedCode, let due): (.pending, nil, sealedCode, due)
        case .none: (.none, nil, nil, nil)
        case .lost: (.lost, nil, nil, nil)
        case .refused(let code): (.refused, code, nil, nil)
        }
    }
}

extension ExchangeOutcome {
    fileprivate var columns: (outcome: RefreshOutcome, error: String?, due: WallTime?, token: SealedToken?) {
        switch self {
        case .stored(let token): (.stored, nil, nil, token)
        case .again(let time): (.pending, nil, time, nil)
        case .lost: (.lost, nil, nil, nil)
        case .refused(let code): (.refused, code, nil, nil)
        }
    }
}
