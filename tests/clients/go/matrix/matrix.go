// Package matrix is the Go side of an adapter: requests as JSON lines on standard input, answers on standard output.
// The two libraries have the same names for most of what they do; Share is what both can be made into.
package matrix

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// ErrNotOffered is returned where the client's API has no such operation.
var ErrNotOffered = errors.New("not offered")

// File is an open file of either library.
type File interface {
	io.ReadWriteCloser
	io.ReaderFrom
	io.WriterTo
	io.WriterAt
}

// Share is a connected share of either library.
type Share interface {
	OpenFile(name string, flag int) (File, error)
	ReadDir(name string) ([]os.FileInfo, error)
	Stat(name string) (os.FileInfo, error)
	Mkdir(name string, perm os.FileMode) error
	Remove(name string) error
	RemoveAll(path string) error
	Rename(oldpath, newpath string) error
	Truncate(name string, size int64) error
	Chtimes(name string, atime, mtime time.Time) error
	Symlink(target, linkpath string) error
	Readlink(name string) (string, error)
	Space() (total, free uint64, err error)
	Shares() ([]string, error)
	ACL(name string) (string, error)
	TooSmall(name string) (code, need uint32, err error)
}

// Request is one line of standard input.
type Request struct {
	Op, Host, User, Password, Share, Local, Path, Old, New, Target string
	Port                                                           int
	Offset, Size, Mtime                                            int64
	Puts, Gets                                                     [][2]string
}

func put(s Share, local, path string) error {
	from, err := os.Open(local)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := s.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	if _, err := to.ReadFrom(from); err != nil {
		to.Close()
		return err
	}
	return to.Close()
}

func get(s Share, path, local string) error {
	from, err := s.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Create(local)
	if err != nil {
		return err
	}
	if _, err := from.WriteTo(to); err != nil {
		return err
	}
	return to.Close()
}

func writeAt(s Share, path string, offset int64, local string) error {
	data, err := os.ReadFile(local)
	if err != nil {
		return err
	}
	f, err := s.OpenFile(path, os.O_RDWR)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(data, offset); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func parallel(s Share, puts, gets [][2]string) error {
	var group sync.WaitGroup
	failed := make(chan error, len(puts)+len(gets))
	for _, p := range puts {
		group.Add(1)
		go func() { defer group.Done(); failed <- put(s, p[0], p[1]) }()
	}
	for _, p := range gets {
		group.Add(1)
		go func() { defer group.Done(); failed <- get(s, p[0], p[1]) }()
	}
	group.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

func answer(s Share, r Request) (map[string]any, error) {
	none := map[string]any{}
	switch r.Op {
	case "put":
		return none, put(s, r.Local, r.Path)
	case "get":
		return none, get(s, r.Path, r.Local)
	case "write_at":
		return none, writeAt(s, r.Path, r.Offset, r.Local)
	case "truncate":
		return none, s.Truncate(r.Path, r.Size)
	case "mkdir":
		return none, s.Mkdir(r.Path, 0o777)
	case "rmdir", "delete":
		return none, s.Remove(r.Path)
	case "remove_all":
		return none, s.RemoveAll(r.Path)
	case "rename":
		return none, s.Rename(r.Old, r.New)
	case "set_time":
		return none, s.Chtimes(r.Path, time.Unix(r.Mtime, 0), time.Unix(r.Mtime, 0))
	case "symlink":
		return none, s.Symlink(r.Target, r.Path)
	case "parallel":
		return none, parallel(s, r.Puts, r.Gets)
	case "readlink":
		target, err := s.Readlink(r.Path)
		return map[string]any{"target": target}, err
	case "list":
		entries, err := s.ReadDir(r.Path)
		names := []string{}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return map[string]any{"names": names}, err
	case "stat":
		i, err := s.Stat(r.Path)
		if err != nil {
			return nil, err
		}
		return map[string]any{"size": i.Size(), "directory": i.IsDir(), "mtime": i.ModTime().Unix()}, nil
	case "space":
		total, free, err := s.Space()
		return map[string]any{"total": total, "free": free}, err
	case "shares":
		names, err := s.Shares()
		return map[string]any{"names": names}, err
	case "too_small":
		code, need, err := s.TooSmall(r.Path)
		return map[string]any{"code": code, "need": need}, err
	case "acl":
		acl, err := s.ACL(r.Path)
		return map[string]any{"acl": acl}, err
	}
	return nil, fmt.Errorf("%s: %w", r.Op, ErrNotOffered)
}

// Serve answers requests until standard input ends.
func Serve(connect func(Request) (Share, error)) {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	var share Share
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var r Request
		var out map[string]any
		if err = json.Unmarshal(line, &r); err == nil {
			if r.Op == "connect" {
				share, err = connect(r)
				out = map[string]any{}
			} else {
				out, err = answer(share, r)
			}
		}
		if errors.Is(err, ErrNotOffered) {
			out = map[string]any{"na": err.Error()}
		} else if err != nil {
			fmt.Fprintln(os.Stderr, r.Op, err)
			out = map[string]any{"error": err.Error()}
		}
		line, _ = json.Marshal(out)
		os.Stdout.Write(append(line, '\n'))
	}
}
