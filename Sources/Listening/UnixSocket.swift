import Glibc
import Synchronization

/// A socket in the file system to listen on.
package struct UnixSocket: Sendable, Equatable, CustomStringConvertible {
    package let path: String
    /// The permissions of the file; who may write to it may connect.
    package let mode: UInt16
    /// The name of the setting, for error texts.
    package let setting: String

    package init(path: String, mode: UInt16 = 0o660, setting: String = "the socket") {
        self.path = path
        self.mode = mode
        self.setting = setting
    }

    package var description: String { "unix:\(path)" }

    /// Connects and closes the connection.
    ///
    /// - Returns: 0 or the error number.
    fileprivate func attempt() -> Int32 {
        let descriptor = socket(
            AF_UNIX,
            Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue | SOCK_CLOEXEC.rawValue),
            0
        )
        guard descriptor >= 0 else { return errno }
        defer { close(descriptor) }
        var address = sockaddr_un()
        address.sun_family = sa_family_t(AF_UNIX)
        let bytes = Array(path.utf8.prefix(Self.longestPath))
        withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: bytes) }
        let length = socklen_t(MemoryLayout<sockaddr_un>.size)
        let result = withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { connect(descriptor, $0, length) }
        }
        // A queue of connections that is full belongs to a process that is alive.
        return result == 0 || errno == EAGAIN ? 0 : errno
    }

    fileprivate static let longestPath = 107

    /// An error about this socket.
    fileprivate func failure(_ code: ServerError.Code, _ cause: String) -> ServerError {
        ServerError(code, "cannot listen on \(self): \(cause)")
    }
}

/// The right to listen on a socket: its path is free, and no other process takes it before it is published.
///
/// The socket is made in a private directory next to its path, and moved there with its final permissions, so that at no time
/// more processes can connect than the permissions allow. Its owner is the user of the process.
package final class SocketClaim: Sendable {
    private let socket: UnixSocket
    private let staging: String
    /// Held until the socket is published, so that two processes don't replace each other's socket.
    private let lock: Mutex<DirectoryLock?>
    private let published = Mutex<(device: UInt, file: UInt)?>(nil)

    /// Removes the socket of a process that has ended.
    ///
    /// - Throws: `addressInUse` if a process answers, `addressUnavailable` if the path can't be used, `permissionDenied`.
    package init(_ socket: UnixSocket) throws(ServerError) {
        self.socket = socket
        let folder = socket.path.lastIndex(of: "/").map { String(socket.path[...$0]) } ?? "./"
        let staging = "\(folder).siwad-\(getpid())"
        guard staging.utf8.count + 2 <= UnixSocket.longestPath, socket.path.utf8.count <= UnixSocket.longestPath else {
            throw socket.failure(.addressUnavailable, "the path is too long; choose a shorter one in \(socket.setting)")
        }
        let directory = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard directory >= 0 else { throw Self.error("open the directory \(folder)", socket) }
        let claimed = DirectoryLock(descriptor: directory)
        guard flock(directory, LOCK_EX | LOCK_NB) == 0 else {
            throw socket.failure(.addressInUse, "another process uses its directory at this moment; start again")
        }
        try Self.clear(socket)
        guard mkdir(staging, 0o700) == 0 || errno == EEXIST else { throw Self.error("write to \(folder)", socket) }
        // It may be of an earlier process with this id, but not of another user, who could exchange the socket.
        var status = stat()
        guard lstat(staging, &status) == 0, status.st_mode & S_IFMT == S_IFDIR, status.st_uid == geteuid(),
            status.st_mode & 0o077 == 0
        else {
            let cause =
                "\(staging) is not a private directory of siwad's user; remove it, or choose a path in a directory that "
                + "only siwad's user can write to in \(socket.setting)"
            throw socket.failure(.addressUnavailable, cause)
        }
        self.staging = staging
        lock = Mutex(claimed)
        unlink(listeningPath)
    }

    deinit {
        unlink(listeningPath)
        rmdir(staging)
    }

    /// Where the socket is made.
    package var listeningPath: String { "\(staging)/s" }

    /// Moves the socket to its path.
    package func publish() throws(ServerError) {
        defer { lock.withLock { $0 = nil } }
        var status = stat()
        guard chmod(listeningPath, mode_t(socket.mode)) == 0, lstat(listeningPath, &status) == 0,
            rename(listeningPath, socket.path) == 0
        else { throw Self.error("make the socket", socket) }
        rmdir(staging)
        published.withLock { $0 = (status.st_dev, status.st_ino) }
    }

    /// Removes the socket, unless another process has replaced it.
    package func remove() {
        var status = stat()
        guard let own = published.withLock({ $0 }), lstat(socket.path, &status) == 0,
            (status.st_dev, status.st_ino) == own
        else { return }
        unlink(socket.path)
    }

    private static func clear(_ socket: UnixSocket) throws(ServerError) {
        var status = stat()
        guard lstat(socket.path, &status) == 0 else {
            guard errno == ENOENT else { throw error("read \(socket.path)", socket) }
            return
        }
        guard status.st_mode & S_IFMT == S_IFSOCK else {
            throw socket.failure(
                .addressUnavailable,
                "the file is not a socket; remove it or choose another path in \(socket.setting)"
            )
        }
        let answer = socket.attempt()
        guard answer != 0 else {
            throw socket.failure(
                .addressInUse,
                "another process answers there; stop it or choose another path in \(socket.setting)"
            )
        }
        errno = answer
        guard [ECONNREFUSED, ENOENT].contains(answer) else { throw error("find out whose socket is there", socket) }
        guard unlink(socket.path) == 0 || errno == ENOENT else {
            throw error("remove the socket of a process that has ended", socket)
        }
    }

    private static func error(_ action: String, _ socket: UnixSocket) -> ServerError {
        let reason = String(cString: strerror(errno))
        let code: ServerError.Code =
            switch errno {
            case EACCES, EPERM, EROFS: .permissionDenied
            case ENOENT, ENOTDIR: .addressUnavailable
            default: .listenFailed
            }
        return socket.failure(code, "cannot \(action): \(reason); check \(socket.setting)")
    }
}

/// An open directory, whose lock ends with it.
private struct DirectoryLock: ~Copyable {
    let descriptor: Int32

    deinit {
        // A child that is being started holds a copy of the descriptor, which would keep the lock until it runs its program.
        flock(descriptor, LOCK_UN)
        close(descriptor)
    }
}
