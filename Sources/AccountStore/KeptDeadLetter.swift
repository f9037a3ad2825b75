package import AppleTokens
import Postgres

/// A dead letter as it stands in the database.
package struct KeptDeadLetter: Sendable, Equatable {
    /// Its number.
    package let id: Int64
    /// When it was received first, by the daemon's clock.
    package let receivedAt: WallTime
    /// When it was received last while it was open.
    package let lastReceivedAt: WallTime
    /// How often it was received while it was open.
    package let deliveries: Int
    /// What the last attempt in vain found; nil: a reason that this siwad doesn't know.
    package let reason: DeadLetterReason?
    /// ``reason`` as it stands there.
    package let rawReason: String
    /// The same in a sentence.
    package let detail: String
    /// Where it stands.
    package let status: DeadLetterStatus
    /// How often processing was tried, at receipt and at each replay.
    package let attempts: Int
    /// `jti`, where it could be read.
    package let notificationID: String?
    /// `aud`, where it could be read.
    package let audience: String?
    /// `sub`, where it could be read.
    package let subject: String?
    /// `type`, where it could be read.
    package let eventType: String?
    /// The key that verified it; nil: not verified yet.
    package let verifiedKeyID: String?
    /// When that was.
    package let verifiedAt: WallTime?
    /// When it was last replayed in vain; nil: never.
    package let lastFailedAt: WallTime?
    /// Who did.
    package let lastFailedBy: String?
    /// The database role of that replay.
    package let lastFailedByRole: String?
    /// When it was replayed for good or discarded.
    package let resolvedAt: WallTime?
    /// Who did that.
    package let resolvedBy: String?
    /// The database role that did.
    package let resolvedByRole: String?
    /// Why, in the operator's words.
    package let note: String?
    /// What the replay did: `applied`, `superseded`, `unchanged` or `duplicate`.
    package let outcome: String?
}

/// What an earlier attempt at a dead letter found.
package struct DeadLetterAttempt: Sendable, Equatable {
    /// Counted from 1, the attempt at receipt.
    package let number: Int
    /// When it was.
    package let attemptedAt: WallTime
    /// Who replayed it; nil at receipt.
    package let operatorName: String?
    /// The database role of the replay; nil at receipt.
    package let databaseRole: String?
    /// What was found.
    package let reason: String
    /// The same in a sentence.
    package let detail: String
}

/// A dead letter with everything that is known of it.
package struct DeadLetterRecord: Sendable, Equatable {
    /// The letter.
    package let letter: KeptDeadLetter
    /// The compact JWS, or the request's body that held it; empty once it was erased.
    package let body: [UInt8]
    /// Whether the database role has no right to see ``body``; then that is empty.
    package let isBodyHidden: Bool
    /// The attempts in vain before the last of them, the first first.
    package let earlierAttempts: [DeadLetterAttempt]
}

extension KeptDeadLetter {
    /// The columns that ``init(_:_:)`` reads.
    static let columns = """
        id, received_at, last_received_at, deliveries, reason, detail, status, attempts, jti, aud, sub, event_type,
        verified_kid, verified_at, last_failed_at, last_failed_by, resolved_at, resolved_by, note, outcome,
        last_failed_by_role, resolved_by_role
        """

    /// Reads a row.
    init(_ rows: borrowing Rows, _ row: Int) throws(PostgresError) {
        rawReason = try rows.string(row, 4)
        let status = try rows.string(row, 6)
        guard let status = DeadLetterStatus(rawValue: status) else {
            throw PostgresError(
                .decoding,
                "a dead letter has an unknown status; use the siwad that migrated the database"
            )
        }
        self.status = status
        id = try rows.int64(row, 0)
        receivedAt = try rows.time(row, 1)
        lastReceivedAt = try rows.time(row, 2)
        deliveries = Int(try rows.int32(row, 3))
        reason = DeadLetterReason(rawValue: rawReason)
        detail = try rows.string(row, 5)
        attempts = Int(try rows.int32(row, 7))
        notificationID = try rows.optionalString(row, 8)
        audience = try rows.optionalString(row, 9)
        subject = try rows.optionalString(row, 10)
        eventType = try rows.optionalString(row, 11)
        verifiedKeyID = try rows.optionalString(row, 12)
        verifiedAt = try rows.optionalTime(row, 13)
        lastFailedAt = try rows.optionalTime(row, 14)
        lastFailedBy = try rows.optionalString(row, 15)
        resolvedAt = try rows.optionalTime(row, 16)
        resolvedBy = try rows.optionalString(row, 17)
        note = try rows.optionalString(row, 18)
        outcome = try rows.optionalString(row, 19)
        lastFailedByRole = try rows.optionalString(row, 20)
        resolvedByRole = try rows.optionalString(row, 21)
    }
}
