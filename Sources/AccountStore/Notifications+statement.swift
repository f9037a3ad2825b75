import Postgres

extension Notifications {
    /// Records a whole batch: one statement, one round trip, one transaction.
    ///
    /// It is given a row for each notification, in the order that ``BatchFacts`` puts them into: by person, then consent.
    /// Beside what the notification says itself stands what the whole batch says of its person and its consent. The first
    /// row of each person stands for the person, the first of each consent for the consent.
    ///
    /// What makes it correct:
    /// - Facts are merged into registers by `least` and `greatest`, first within the batch, then with the rows; a row is
    ///   written only if a register moves.
    /// - What changed is found by comparing the snapshot's row with what becomes of it. A row is updated only while it is
    ///   the very version that the snapshot showed, which the transaction tells that wrote it; when another writer came in
    ///   between, be it somebody's UPDATE by hand, the statement fails, with 40001 or because what is new here is there
    ///   already, and is executed again.
    /// - A notification that is there already is passed over by its unique `jti`. Its facts are merged all the same, since
    ///   they are the same facts.
    /// - An empty message goes to the write-ahead log. A commit without anything there waits neither for the disk nor for
    ///   standbys, but the one that brought a notification that is there already may be one that was never confirmed.
    /// - Of a person whose data were erased no token is kept. Their address register stands at infinity, so that no
    ///   observation moves it.
    ///
    /// What makes it fast, with the settings of ``writerSettings``: look-ups in tables are lateral sub-selects, which can
    /// only be nested loops over an index; a row that was looked up is updated at its place, without a second search; all
    /// notifications are judged in one pass, which everything that writes reads. The plan has the same shape for an empty
    /// table and for a large one. The arrays are unnested in a select list, side by side: in FROM, each of them would be
    /// written to a store of its own and read from it again. The tokens, most of the bytes, go straight from their array
    /// into the table.
    ///
    /// A small batch costs what starting the plan costs: every node counts, every column that passes through one, every
    /// expression that stands in it twice, and every level with a sub-select in an expression, whose expressions the server
    /// searches for tables to lock each time.
    ///
    /// Nothing is sorted, since nothing depends on an order. As nothing reorders rows, either, they are locked and written
    /// in the order of the arrays: writers meet in the order of the persons, and a person's changes have their numbers in
    /// that order as well.
    static let record = Statement(String(sql: PackageResources.record_notifications_sql))
}
