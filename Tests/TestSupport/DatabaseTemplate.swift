public import Postgres

/// What a test database holds to begin with; prepared once for a process, then copied.
public struct DatabaseTemplate: Sendable {
    /// Tells templates apart.
    public let name: String
    let prepare: @Sendable (ConnectionSettings) async throws -> Void

    /// A template by its name, which decides what is prepared only once: letters, digits and underscores.
    public init(_ name: String, prepare: @escaping @Sendable (ConnectionSettings) async throws -> Void) {
        self.name = name
        self.prepare = prepare
    }

    /// Nothing at all.
    public static let empty = DatabaseTemplate("empty") { _ in }
}
