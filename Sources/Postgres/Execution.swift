/// A statement with its values.
package struct Execution: Sendable {
    let statement: Statement
    let binds: Binds

    /// The statement with these values.
    package init(_ statement: Statement, _ binds: Binds) {
        self.statement = statement
        self.binds = binds
    }
}
