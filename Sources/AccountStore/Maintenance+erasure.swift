import AppleTokens
import Postgres

/// The erasure of what is personal about people whose Apple Account was deleted.
///
/// What stays is the tombstone: `team_id`, `sub`, `deleted_at` and the other registers of time, from which every state
/// follows. What can't come back is the address: its register is set to the end of time. What came in for such a person
/// afterwards is stored without its token by `Notifications.record`.
extension Maintenance {
    static func erasure(
        _ cutoff: WallTime,
        _ now: WallTime,
        from page: Int64,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        // Each person's rows are looked up by index, whatever the planner believes of tables that it has not analysed yet.
        try transaction.execute(
            script: "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"
        )
        var effects = MaintenanceEffects()
        let erased = try transaction.execute(
            eraseAccounts,
            Binds {
                $0.append(Timestamp(cutoff))
                $0.append(Timestamp(now))
                $0.append(accountsAtOnce)
                $0.append(page)
                $0.append(pagesAtOnce)
            }
        )
        effects.accountsErased = Int(try erased.int64(0, 0))
        effects.tokensErased = Int(try erased.int64(0, 1))
        if effects.accountsErased == Int(accountsAtOnce) {
            return MaintenanceStep(effects: effects, isLast: false, nextPage: try erased.int64(0, 2))
        }
        if page + pagesAtOnce < (try erased.int64(0, 3)) {
            return MaintenanceStep(effects: effects, isLast: false, nextPage: page + pagesAtOnce)
        }

        let late = try transaction.execute(eraseLateTokens, Binds { $0.append(Timestamp(now - .seconds(86_400))) })
        effects.tokensErased += late.affectedRows
        let letters = try transaction.execute(
            eraseLetters,
            Binds {
                $0.append(lettersAtOnce)
                $0.append(erasedNote)
            }
        )
        effects.lettersErased = Int(try letters.int64(0, 0))
        let discarded = Int(try letters.int64(0, 1))
        if discarded > 0 {
            try OperatorActions.record(
                OperatorAction(
                    operatorName: "siwad",
                    action: "dead-letters discard",
                    target: "letters of accounts that were erased",
                    note: erasedNote,
                    affected: discarded
                ),
                in: transaction
            )
        }
        let isLast = effects.lettersErased < Int(lettersAtOnce)
        return MaintenanceStep(effects: effects, isLast: isLast, nextPage: page + pagesAtOnce)
    }

    private static let erasedNote = "erased with the deleted account"

    /// Looks through a stretch of pages, and tells how many there are, and the page of the last that was erased. No index
    /// finds those who are due: it would have each deletion write to every index of accounts.
    ///
    /// Rows that a notification is just being recorded for are left to the next time, rather than waited for.
    private static let eraseAccounts = Statement(String(sql: PackageResources.erase_accounts_sql))

    /// The tokens that were being recorded while the account was erased.
    private static let eraseLateTokens = Statement(
        """
        UPDATE siwa.notifications AS n
        SET jws = NULL
        FROM siwa.accounts AS a
        WHERE a.erased_at >= $1 AND n.sub = a.sub AND n.team_id = a.team_id AND n.jws IS NOT NULL
        """
    )

    /// A letter says of itself whom it is about. One for an app of another team is about somebody else.
    private static let eraseLetters = Statement(String(sql: PackageResources.erase_letters_sql))
}
