/// One numbered, forward-only step of a schema.
public struct Migration: Sendable, Hashable {
    /// Its place, from 1.
    public let number: Int
    /// What it is about, for people.
    public let name: String
    /// Its statements, without transaction commands: they run in a transaction together with the record of it.
    public let sql: String

    /// A step of a schema.
    public init(number: Int, name: String, sql: String) {
        self.number = number
        self.name = name
        self.sql = sql
    }
}

/// How one migration stands in one database.
public struct MigrationStatus: Sendable, Hashable {
    /// What the database and the migrations at hand say together.
    public enum State: String, Sendable, CaseIterable {
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
    public let number: Int
    /// What it is about, by the migrations at hand, else by the database.
    public let name: String
    /// How it stands.
    public let state: State
    /// When it was applied, by the database's clock.
    public let appliedAt: Timestamp?
}
