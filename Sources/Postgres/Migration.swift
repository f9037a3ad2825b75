/// One numbered, forward-only step of a schema.
package struct Migration: Sendable, Hashable {
    /// Its place, from 1.
    package let number: Int
    /// What it is about, for people.
    package let name: String
    /// Its statements, without transaction commands: they run in a transaction together with the record of it.
    package let sql: String

    /// A step of a schema.
    package init(number: Int, name: String, sql: String) {
        self.number = number
        self.name = name
        self.sql = sql
    }
}

/// How one migration stands in one database.
package struct MigrationStatus: Sendable, Hashable {
    /// What the database and the migrations at hand say together.
    package enum State: String, Sendable, CaseIterable {
        /// In the database, with the text at hand.
        case applied
        /// Not in the database yet.
        case pending
        /// In the database, with another text.
        case changed
        /// In the database, but not at hand: a later version has been here.
        case unknown
    }

    /// Its place, from 1.
    package let number: Int
    /// What it is about, by the migrations at hand, else by the database.
    package let name: String
    /// How it stands.
    package let state: State
    /// When it was applied, by the database's clock.
    package let appliedAt: Timestamp?
}
