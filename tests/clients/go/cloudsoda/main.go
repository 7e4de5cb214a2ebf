// The adapter of cloudsoda/go-smb2.
package main

import (
	"context"
	"fmt"

	"arden/clients/matrix"

	"github.com/cloudsoda/go-smb2"
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
	return i.TotalBlockCount() * i.BlockSize(), i.AvailableBlockCount() * i.BlockSize(), nil
}

func (s share) Shares() ([]string, error) { return s.session.ListSharenames() }

func (s share) ACL(name string) (string, error) {
	d, err := s.SecurityInfo(name, smb2.OwnerSecurityInformation|smb2.GroupSecurityInformation|smb2.DACLSecurityInformation)
	if err != nil {
		return "", err
	}
	return d.String(), nil
}

func connect(r matrix.Request) (matrix.Share, error) {
	dialer := &smb2.Dialer{Initiator: &smb2.NTLMInitiator{User: r.User, Password: r.Password}}
	session, err := dialer.Dial(context.Background(), fmt.Sprintf("%s:%d", r.Host, r.Port))
	if err != nil {
		return nil, err
	}
	mounted, err := session.Mount(r.Share)
	return share{mounted, session}, err
}

func main() { matrix.Serve(connect) }
