/// A statement with its values.
public struct Execution: Sendable {
    let statement: Statement
    let binds: Binds

    /// The statement with these values.
    public init(_ statement: Statement, _ binds: Binds) {
        self.statement = statement
        self.binds = binds
    }
}
