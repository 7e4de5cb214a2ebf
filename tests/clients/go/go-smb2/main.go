// The adapter of hirochachacha/go-smb2.
package main

import (
	"fmt"
	"net"

	"arden/clients/matrix"

	"github.com/hirochachacha/go-smb2"
)

type share struct {
	*smb2.Share
	session *smb2.Session
}

func (s share) OpenFile(name string, flag int) (matrix.File, error) {
	return s.Share.OpenFile(name, flag, 0o666)
}

func (s share) Space() (uint64, uint64, error) {
	i, err := s.Statfs(".")
	if err != nil {
		return 0, 0, err
	}
	return i.TotalBlockCount() * i.BlockSize() * i.FragmentSize(), i.AvailableBlockCount() * i.BlockSize() * i.FragmentSize(), nil
}

func (s share) Shares() ([]string, error) { return s.session.ListSharenames() }

func (s share) ACL(string) (string, error) { return "", fmt.Errorf("ACLs: %w", matrix.ErrNotOffered) }

func connect(r matrix.Request) (matrix.Share, error) {
	c, err := net.Dial("tcp", fmt.Sprintf("%s:%d", r.Host, r.Port))
	if err != nil {
		return nil, err
	}
	session, err := (&smb2.Dialer{Initiator: &smb2.NTLMInitiator{User: r.User, Password: r.Password}}).Dial(c)
	if err != nil {
		return nil, err
	}
	mounted, err := session.Mount(r.Share)
	return share{mounted, session}, err
}

func main() { matrix.Serve(connect) }
