// A web application that signs people in with Apple and keeps its sessions in siwad.
//
// POST /sign-in takes the claims of an identity token that you have verified, GET / checks the session of a request, and
// GET /newsletter lists the addresses to write to. Needs pgx 4. Environment: DATABASE_URL, CLIENT_ID, PORT.
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

var client, pool = os.Getenv("CLIENT_ID"), connect()

// route answers a request, and says what went wrong if the database refuses.
type route func(w http.ResponseWriter, r *http.Request) error

func (answer route) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var refused *pgconn.PgError
	if err := answer(w, r); errors.As(err, &refused) && refused.Code == "SW002" {
		http.Error(w, "This Apple Account was deleted.", http.StatusForbidden)
	} else if err != nil {
		log.Print(err)
		http.Error(w, "Try again later.", http.StatusInternalServerError)
	}
}

// sessionID returns a digest, so that nothing in the database can be used as a session.
func sessionID(token string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(token))) }

func signIn(w http.ResponseWriter, r *http.Request) error {
	var claims struct {
		Sub       string
		Email     *string
		IsPrivate any `json:"is_private_email"` // Apple sends a boolean or a text.
		Iat       float64
	}
	if err := json.NewDecoder(r.Body).Decode(&claims); err != nil {
		return err
	}
	random := make([]byte, 32)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	token := hex.EncodeToString(random)
	isLive := false
	// One transaction, before or after a deletion.
	err := pool.BeginFunc(r.Context(), func(tx pgx.Tx) error {
		_, err := tx.Exec(r.Context(), "SELECT siwa.record_sign_in($1, $2, $3, $4, to_timestamp($5))",
			client, claims.Sub, claims.Email, claims.IsPrivate, claims.Iat)
		if err != nil {
			return err
		}
		open := "SELECT siwa.open_session($1, $2, $3, to_timestamp($4), now() + interval '30 days')"
		err = tx.QueryRow(r.Context(), open, client, claims.Sub, sessionID(token), claims.Iat).Scan(&isLive)
		if err == nil && isLive {
			_, err = tx.Exec(r.Context(), `INSERT INTO shop.subscribers AS s VALUES ($1, $2)
				ON CONFLICT (sub) DO UPDATE SET email = coalesce(excluded.email, s.email)`, claims.Sub, claims.Email)
		}
		return err
	})
	if err != nil {
		return err
	}
	if !isLive { // The consent was revoked after Apple issued the token.
		http.Error(w, "Sign in again.", http.StatusUnauthorized)
		return nil
	}
	http.SetCookie(w, &http.Cookie{Name: "session", Value: token, MaxAge: 30 * 86400, Secure: true, HttpOnly: true})
	return nil
}

func account(w http.ResponseWriter, r *http.Request) (err error) {
	isLive := false
	if cookie, missing := r.Cookie("session"); missing == nil {
		err = pool.QueryRow(r.Context(), "SELECT siwa.session_is_live($1)", sessionID(cookie.Value)).Scan(&isLive)
	}
	if err == nil && !isLive {
		http.Error(w, "Sign in first.", http.StatusUnauthorized)
	}
	return err
}

func newsletter(w http.ResponseWriter, r *http.Request) error {
	var email string
	_, err := pool.QueryFunc(r.Context(), `SELECT email FROM shop.subscribers AS s
		WHERE email IS NOT NULL AND NOT EXISTS (SELECT FROM siwa.undeliverable_addresses AS u WHERE u.email = s.email) ORDER BY email`,
		nil, []any{&email}, func(pgx.QueryFuncRow) error {
			_, err := fmt.Fprintln(w, email)
			return err
		})
	return err
}

// followChanges acts on each change once: the position is stored in the transaction that acts.
func followChanges(tx pgx.Tx) error {
	var position int64
	var sub, kind string
	var deleted []string
	ctx := context.Background()
	if err := tx.QueryRow(ctx, "SELECT position FROM shop.feed FOR UPDATE").Scan(&position); err != nil {
		return err
	}
	_, err := tx.QueryFunc(ctx, "SELECT position, sub, type FROM siwa.changes WHERE position > $1 ORDER BY position LIMIT 100",
		[]any{position}, []any{&position, &sub, &kind}, func(pgx.QueryFuncRow) error {
			fmt.Printf("%s: %s\n", sub, kind)
			if kind == "siwa.account.deleted" {
				deleted = append(deleted, sub)
			}
			return nil
		})
	if err == nil {
		_, err = tx.Exec(ctx, "DELETE FROM shop.subscribers WHERE sub = ANY ($1)", deleted)
	}
	if err == nil {
		_, err = tx.Exec(ctx, "UPDATE shop.feed SET position = $1", position)
	}
	return err
}

func connect() *pgxpool.Pool {
	pool, err := pgxpool.Connect(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	return pool
}

func main() {
	http.Handle("/sign-in", route(signIn))
	http.Handle("/newsletter", route(newsletter))
	http.Handle("/", route(account))
	go func() { log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil)) }()
	for ; ; time.Sleep(time.Second) {
		if err := pool.BeginFunc(context.Background(), followChanges); err != nil {
			log.Print(err)
		}
	}
}
