import AppleTokens
import Basics
package import Postgres

// MARK: - Batches of sign-ins

/// Starting a statement and waiting for the disk cost more than the rows of one sign-in, so sign-ins that arrive at the same time
/// share both. Each function executes one statement, for the usual case only; what it leaves out is unchanged.
extension SignIns {
    /// Prepares a transaction for the other functions.
    ///
    /// They have one plan each, which is the same for empty and for large tables. A statement that waits for another transaction
    /// fails after 100 ms: a batch locks people before it inserts people, and notifications insert before they lock, so each
    /// could wait for the other.
    package static func beginBatch(in transaction: borrowing Session) throws(PostgresError) {
        try transaction.execute(
            script: """
                SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_seqscan = off; SET LOCAL jit = off; \
                SET LOCAL lock_timeout = '100ms'
                """
        )
    }

    /// Reserves sign-ins as ``reserve(_:in:)`` does.
    ///
    /// - Parameter batch: with different tokens: of two with the same one, the first would also get a reservation that is the
    ///   other's.
    /// - Returns: for each, the id of its reservation; nil if only ``reserve(_:in:)`` can decide it.
    package static func reserve(
        _ batch: [NewSignIn],
        in transaction: borrowing Session
    ) throws(PostgresError) -> [Int64?] {
        let binds = Binds { binds in
            binds.appendBytes(batch.count) { batch[$0].presentedDigest }
            binds.appendBytes(batch.count) { batch[$0].nonceDigest }
            binds.appendBytes(batch.count) { batch[$0].codeDigest }
            binds.appendTexts(batch.count) { batch[$0].client.rawValue }
            binds.appendTexts(batch.count) { batch[$0].kind.rawValue }
            binds.appendTexts(batch.count) { batch[$0].caller }
            binds.appendBytes(batch.count) { batch[$0].attempt }
            binds.appendTexts(batch.count) { batch[$0].subject?.rawValue }
            binds.appendTimestamps(batch.count) { batch[$0].issuedAt.map { Timestamp($0) } }
            binds.appendTexts(batch.count) { batch[$0].sessionID }
            binds.appendTexts(batch.count) { batch[$0].device?.platform }
            binds.appendTexts(batch.count) { batch[$0].device?.model }
            binds.appendTexts(batch.count) { batch[$0].device?.label }
        }
        let rows = try transaction.execute(reserveBatch, binds)
        var ids: [[UInt8]: Int64] = [:]
        for row in 0..<rows.count { ids[try rows.bytes(row, 0)] = try rows.int64(row, 1) }
        // Of two requests with the same token, the first gets the reservation.
        return batch.map { ids.removeValue(forKey: $0.presentedDigest) }
    }

    /// Settles sign-ins as ``settle(_:in:)`` does.
    ///
    /// - Parameters:
    ///   - batch: of different people.
    ///   - unreserved: for each, nil, or the sign-in if it is not reserved, because it has no code to trade; its
    ///     ``Settlement/signInID`` is ignored. Empty if all are reserved.
    /// - Returns: for each, its result; nil if only ``reserve(_:in:)`` and ``settle(_:in:)`` can decide it.
    /// - Throws: SQLSTATE 40001, 23505 or 55P03 if another writer changed, inserted or holds one of the people or sign-ins:
    ///   settle each by itself.
    package static func settle(
        _ batch: [Settlement],
        unreserved: [NewSignIn?] = [],
        in transaction: borrowing Session
    ) throws(PostgresError) -> [SettledSignIn?] {
        let new = unreserved.isEmpty ? [NewSignIn?](repeating: nil, count: batch.count) : unreserved
        let refresh = batch.map(\.refresh.columns)
        let names = batch.map { $0.keepsNames ? $0.name : nil }
        let binds = Binds { binds in
            binds.append(array: batch.indices.map { new[$0] == nil ? batch[$0].signInID : nil })
            binds.appendTexts(batch.count) { batch[$0].subject.rawValue }
            binds.appendTexts(batch.count) { batch[$0].email?.address }
            binds.appendBools(batch.count) { batch[$0].email?.isPrivate }
            binds.appendTimestamps(batch.count) { Timestamp(batch[$0].signedInAt) }
            binds.appendTexts(batch.count) { names[$0]?.given }
            binds.appendTexts(batch.count) { names[$0]?.family }
            binds.appendTexts(batch.count) { batch[$0].realUserStatus }
            binds.appendTexts(batch.count) { refresh[$0].outcome.rawValue }
            binds.appendBytes(batch.count) { refresh[$0].sealedCode }
            binds.appendTimestamps(batch.count) { refresh[$0].due.map { Timestamp($0) } }
            binds.appendTexts(batch.count) { batch[$0].session?.id }
            binds.appendTimestamps(batch.count) { batch[$0].session?.expiresAt.map { Timestamp($0) } }
            binds.appendBytes(batch.count) { new[$0]?.presentedDigest }
            binds.appendBytes(batch.count) { new[$0]?.nonceDigest }
            binds.appendTexts(batch.count) { new[$0]?.client.rawValue }
            binds.appendTexts(batch.count) { new[$0]?.kind.rawValue }
            binds.appendTexts(batch.count) { new[$0]?.caller }
            binds.appendBytes(batch.count) { new[$0]?.attempt }
            binds.appendTexts(batch.count) { new[$0]?.device?.platform }
            binds.appendTexts(batch.count) { new[$0]?.device?.model }
            binds.appendTexts(batch.count) { new[$0]?.device?.label }
        }
        let rows = try transaction.execute(settleBatch, binds)
        var settled: [Subject: SettledSignIn] = [:]
        for row in 0..<rows.count {
            let signIn = try SettledSignIn(rows, row)
            settled[signIn.subject] = signIn
        }
        return batch.map { settled[$0.subject] }
    }

    private static let reserveBatch = Statement(String(sql: PackageResources.reserve_sign_ins_sql))
    private static let settleBatch = Statement(String(sql: PackageResources.settle_sign_ins_sql))
}

extension Settlement {
    /// Whether ``SignIns/settle(_:in:)`` for several sign-ins can settle it: not if the outcome of the exchange depends on
    /// earlier attempts, or if the session does not begin with the sign-in.
    package var isUsual: Bool {
        if case .refused = refresh { return false }
        return session.map { $0.createdAt == signedInAt } ?? true
    }
}
