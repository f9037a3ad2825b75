import AccountStore
import Postgres
import Schema
import StoreTestSupport
import TestSupport

/// Random histories in a database, and the states that must follow from them wherever the database is moved to.
struct RandomStates {
    private static let histories = 60

    private var generator: SeededGenerator
    private var models: [String: Model] = [:]
    private var parts: [[Ledger.Delivery]] = [[], []]

    init(seed: UInt64) {
        generator = SeededGenerator(seed: seed)
        for index in 0..<Self.histories {
            let history = History(using: &generator)
            let facts = history.delivery(using: &generator)
            let prefix = "\(index)/"
            models[prefix] = Model(history.facts)
            parts[0].append(Ledger.Delivery(prefix: prefix, remaining: Array(facts.prefix(facts.count / 2))))
            parts[1].append(Ledger.Delivery(prefix: prefix, remaining: Array(facts.dropFirst(facts.count / 2))))
        }
    }

    /// Prepares an empty database with the migrations up to a number.
    static func migrate(_ connection: PostgresConnection, through number: Int = Schema.migrations.count) async throws {
        try await Migrator(Array(Schema.migrations.prefix(number)), schema: Schema.name).up(on: connection)
        try await connection.withSession { session throws(PostgresError) in
            try Clients.add(DatabaseTemplate.siwaAudiences, in: session)
        }
    }

    /// Records the first or the second half of each history.
    mutating func record(half: Int, on connection: PostgresConnection) async throws {
        try await connection.withSession { session throws(PostgresError) in
            try session.execute(script: Notifications.writerSettings)
            try Notifications.ensurePartitions(from: Ledger.time(0), through: Ledger.time(10), in: session)
        }
        try await Ledger.record(parts[half], on: connection, using: &generator)
    }

    /// The differences between the states in the database and the states that follow from both halves.
    func differences(on connection: PostgresConnection) async throws -> [String] {
        let observed = try await Observed.all(since: Ledger.start, on: connection)
        return models.flatMap { prefix, model in
            (observed[prefix] ?? Observed(since: Ledger.start)).differences(from: model).map { "\(prefix): \($0)" }
        }
    }

    /// The missing and changed objects of the schema.
    static func drift(on connection: PostgresConnection) async throws -> [String] {
        let drift = try await connection.transaction { session throws(PostgresError) in
            SchemaDrift(of: try SchemaCatalog(readFrom: session), from: .expected)
        }
        return (drift.missing + drift.changed + drift.foreign).map(\.description)
    }

    /// A digest of the rows of each table.
    static func digests(on connection: PostgresConnection) async throws -> [String: String] {
        try await connection.withSession { session throws(PostgresError) in
            let tables = try session.execute(
                once: """
                    SELECT relname::text FROM pg_class
                    WHERE relnamespace = 'siwa'::regnamespace AND relkind = 'r' ORDER BY relname
                    """
            )
            var digests: [String: String] = [:]
            for table in try (0..<tables.count).map({ row throws(PostgresError) in try tables.string(row, 0) }) {
                let rows = try session.execute(
                    once: """
                        SELECT count(*) || ' rows, ' || md5(coalesce(string_agg(t::text, ',' ORDER BY t::text), ''))
                        FROM siwa.\(table) AS t
                        """
                )
                digests[table] = try rows.string(0, 0)
            }
            return digests
        }
    }
}
