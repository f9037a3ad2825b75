package import Postgres

/// What a test database holds to begin with; prepared once for a process, then copied.
package struct DatabaseTemplate: Sendable {
    /// Tells templates apart.
    package let name: String
    let prepare: @Sendable (ConnectionSettings) async throws -> Void

    /// A template by its name, which decides what is prepared only once: letters, digits and underscores.
    package init(_ name: String, prepare: @escaping @Sendable (ConnectionSettings) async throws -> Void) {
        self.name = name
        self.prepare = prepare
    }

    /// Nothing at all.
    package static let empty = DatabaseTemplate("empty") { _ in }
}
