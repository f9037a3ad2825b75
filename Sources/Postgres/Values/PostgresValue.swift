/// A type whose values can be bound to a parameter and read from a column, in PostgreSQL's binary form.
package protocol PostgresValue {
    /// The types that a value and an array of values are bound as, by their object ids.
    static var type: (id: UInt32, array: UInt32) { get }
    /// The value of NULL; nil if this type has none.
    static var null: Self? { get }

    /// Fails if a value of `type` cannot be read as this type.
    init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer)

    /// True for NULL; then nothing is written.
    var isNull: Bool { get }
    func write(to binds: inout Binds)
}

extension PostgresValue {
    package static var null: Self? { nil }
    package var isNull: Bool { false }
}

/// nil is NULL.
extension Optional: PostgresValue where Wrapped: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { Wrapped.type }
    package static var null: Wrapped?? { .some(nil) }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        guard let value = unsafe Wrapped(type, bytes) else { return nil }
        self = value
    }

    package var isNull: Bool { self == nil }
    package func write(to binds: inout Binds) { self?.write(to: &binds) }
}

/// A type that is bound and read as its raw value.
extension PostgresValue where Self: RawRepresentable, RawValue: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { RawValue.type }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        guard let rawValue = unsafe RawValue(type, bytes) else { return nil }
        self.init(rawValue: rawValue)
    }

    package func write(to binds: inout Binds) { rawValue.write(to: &binds) }
}

/// Bound as `text`. Reads a text of every type, or a value of a user's enum.
extension String: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { (ServerType.text, ServerType.textArray) }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        // The bytes are valid during the call, and the string copies them.
        switch type {
        case ServerType.text, ServerType.varchar, ServerType.bpchar, ServerType.name, ServerType.json,
            ServerType.char, ServerType.unknown, ServerType.firstOfUsers...:
            unsafe self.init(decoding: bytes, as: UTF8.self)
        case ServerType.jsonb:
            // One byte with the version of the format precedes the text.
            unsafe self.init(decoding: bytes.dropFirst(), as: UTF8.self)
        default:
            return nil
        }
    }

    package func write(to binds: inout Binds) { binds.writeText(utf8) }
}

/// Bound as `bigint`. Reads an integer of any width.
extension Int64: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { (ServerType.int8, ServerType.int8Array) }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        if type == ServerType.int8 {
            unsafe self.init(bigEndianBytes: bytes)
        } else {
            guard let value = unsafe Int32(type, bytes) else { return nil }
            self.init(value)
        }
    }

    package func write(to binds: inout Binds) { binds.writeInteger(self) }
}

/// As `Int64`.
extension Int: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { Int64.type }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        guard let value = unsafe Int64(type, bytes) else { return nil }
        self.init(value)
    }

    package func write(to binds: inout Binds) { binds.writeInteger(Int64(self)) }
}

/// Bound as `integer`. Reads an `integer` or a `smallint`.
extension Int32: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { (ServerType.int4, ServerType.int4Array) }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        switch type {
        case ServerType.int4:
            unsafe self.init(bigEndianBytes: bytes)
        case ServerType.int2:
            guard let value = unsafe Int16(bigEndianBytes: bytes) else { return nil }
            self.init(value)
        default:
            return nil
        }
    }

    package func write(to binds: inout Binds) { binds.writeInteger(self) }
}

extension Bool: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { (ServerType.bool, ServerType.boolArray) }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        guard type == ServerType.bool, let byte = unsafe UInt8(bigEndianBytes: bytes) else { return nil }
        self = byte != 0
    }

    package func write(to binds: inout Binds) { binds.writeInteger(UInt8(self ? 1 : 0)) }
}

extension Double: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { (ServerType.float8, ServerType.float8Array) }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        guard type == ServerType.float8, let bits = unsafe UInt64(bigEndianBytes: bytes) else { return nil }
        self.init(bitPattern: bits)
    }

    package func write(to binds: inout Binds) { binds.writeInteger(bitPattern) }
}

/// An `interval` in microseconds. Days of 24 hours and months of 30 days are read as such, and are not written.
extension Duration: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { (ServerType.interval, ServerType.intervalArray) }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        guard type == ServerType.interval, bytes.count == 16,
            let microseconds = unsafe Int64(bigEndianBytes: UnsafeRawBufferPointer(rebasing: bytes[..<8])),
            let days = unsafe Int32(bigEndianBytes: UnsafeRawBufferPointer(rebasing: bytes[8..<12])),
            let months = unsafe Int32(bigEndianBytes: UnsafeRawBufferPointer(rebasing: bytes[12...]))
        else { return nil }
        self = .microseconds(microseconds) + .seconds((Int64(days) + Int64(months) * 30) * 86_400)
    }

    package func write(to binds: inout Binds) {
        let (seconds, attoseconds) = components
        binds.writeInteger(seconds * 1_000_000 + attoseconds / 1_000_000_000_000)
        binds.writeInteger(Int64(0))
    }
}

extension Timestamp: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { (ServerType.timestamptz, ServerType.timestamptzArray) }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        guard type == ServerType.timestamptz, let value = unsafe Int64(bigEndianBytes: bytes) else { return nil }
        self.init(serverValue: value)
    }

    package func write(to binds: inout Binds) { binds.writeInteger(serverValue) }
}

/// Bound as `bytea`. Reads a `bytea`, or the UTF-8 of a text.
extension [UInt8]: PostgresValue {
    package static var type: (id: UInt32, array: UInt32) { (ServerType.bytea, ServerType.byteaArray) }

    package init?(_ type: UInt32, _ bytes: UnsafeRawBufferPointer) {
        guard [ServerType.bytea, ServerType.text, ServerType.varchar].contains(type) else { return nil }
        // The bytes are valid during the call, and the array copies them.
        unsafe self.init(bytes)
    }

    package func write(to binds: inout Binds) { binds.writeBytes(self) }
}

/// A `text`, given as UTF-8.
package struct UTF8Text: RawRepresentable, PostgresValue {
    package let rawValue: [UInt8]

    package init(rawValue: [UInt8]) { self.rawValue = rawValue }

    package static var type: (id: UInt32, array: UInt32) { String.type }
    package func write(to binds: inout Binds) { binds.writeText(rawValue) }
}

extension FixedWidthInteger {
    /// Fails if the number of bytes is not the one of this type, which is checked before they are loaded.
    fileprivate init?(bigEndianBytes bytes: UnsafeRawBufferPointer) {
        guard bytes.count == MemoryLayout<Self>.size else { return nil }
        unsafe self.init(bigEndian: bytes.loadUnaligned(as: Self.self))
    }
}

/// The built-in types that this client binds and reads, by their fixed object ids (`pg_type.dat`).
enum ServerType {
    static let bool: UInt32 = 16
    static let bytea: UInt32 = 17
    static let char: UInt32 = 18
    static let name: UInt32 = 19
    static let int8: UInt32 = 20
    static let int2: UInt32 = 21
    static let int4: UInt32 = 23
    static let text: UInt32 = 25
    static let json: UInt32 = 114
    static let float8: UInt32 = 701
    static let unknown: UInt32 = 705
    static let bpchar: UInt32 = 1042
    static let varchar: UInt32 = 1043
    static let timestamptz: UInt32 = 1184
    static let interval: UInt32 = 1186
    static let jsonb: UInt32 = 3802

    static let boolArray: UInt32 = 1000
    static let byteaArray: UInt32 = 1001
    static let int4Array: UInt32 = 1007
    static let textArray: UInt32 = 1009
    static let int8Array: UInt32 = 1016
    static let float8Array: UInt32 = 1022
    static let timestamptzArray: UInt32 = 1185
    static let intervalArray: UInt32 = 1187

    /// The first object id that a user's own type, such as an enum, can have.
    static let firstOfUsers: UInt32 = 16_384
}
